"""A site in a process of its own, made from what the coordinator tells."""

from __future__ import annotations

from typing import Any

from flowrl.channels import Exchange, Mailbox
from flowrl.checks.check import check
from flowrl.sites.beacon import Beacon
from flowrl.sites.layout import COORDINATOR, Layout
from flowrl.sites.site import run_site
from flowrl.source.loading import load_text


class Child:
    """One of the sites that are told of: the same graph, read and checked once for all of them."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._checked = check(load_text(told["graph"], told["title"]))
        where = {(node, replica): site for node, replica, site in told["where"]}
        self._layout = Layout(told["kinds"], where)

    def begin(self, name: str) -> None:
        """Be this site: reachable, and knowing whom it talks to."""
        told, self._name = self._told, name
        mailbox = Mailbox(name, bytes.fromhex(told["run"]))
        mailbox.listen(told["addresses"][name])
        for peer in told["sites"][name]["peers"]:
            mailbox.meet(peer, told["addresses"][peer])
        self._exchange = Exchange(mailbox)

    def run(self) -> None:
        """Be at work until the coordinator says otherwise."""
        told, name = self._told, self._name
        aside = Mailbox(name, bytes.fromhex(told["run"]))
        beacon = Beacon(aside, told["addresses"][COORDINATOR])
        run_site(self._checked, self._layout, name, self._exchange, told["seed"], beacon.watch)
        beacon.close()
