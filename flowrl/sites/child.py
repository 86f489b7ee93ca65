"""A process with one site: `python -m flowrl.sites.child`, told by JSON on its standard input what it is."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from typing import Any

from flowrl.channels import Exchange, Mailbox
from flowrl.channels.keys import Keys
from flowrl.checks.check import check
from flowrl.sites.layout import Layout
from flowrl.sites.netaddress import tcp
from flowrl.sites.site import run_site
from flowrl.source.loading import load_text

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Be a site until the coordinator says otherwise."""
    told = json.load(sys.stdin)
    _die_with(told["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to deal with
    mailbox = _mailbox(told)
    where = {(node, replica): site for node, replica, site in told["where"]}
    checked = check(load_text(told["graph"], told["title"]))
    layout = Layout(told["kinds"], where)
    run_site(checked, layout, told["name"], Exchange(mailbox), told["seed"])


def _mailbox(told: dict[str, Any]) -> Mailbox:
    """Reachable on this machine, and from others if one of them has business here."""
    keys = Keys.of_text(told["keys"]) if told["keys"] else None
    mailbox = Mailbox(told["name"], bytes.fromhex(told["run"]), keys=keys)
    mailbox.listen(told["near"])
    if told["door"] is not None:
        door = socket.socket(fileno=told["door"])
        host, port = door.getsockname()[:2]
        mailbox.listen(tcp(host, port), door.detach())
    for peer, address in told["peers"].items():
        mailbox.meet(peer, address)
    return mailbox


def _die_with(parent: int) -> None:
    """End when the coordinator does, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it ended before we asked


if __name__ == "__main__":
    main()
