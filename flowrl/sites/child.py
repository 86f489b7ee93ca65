"""A process with one site: `python -m flowrl.sites.child`, told by JSON on its standard input what it is."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from flowrl.channels import Exchange, Mailbox
from flowrl.checks.check import check
from flowrl.sites.beacon import Beacon
from flowrl.sites.layout import COORDINATOR, Layout
from flowrl.sites.site import run_site
from flowrl.source.loading import load_text

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Be a site until the coordinator says otherwise."""
    told = json.load(sys.stdin)
    _die_with(told["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to deal with
    run = bytes.fromhex(told["run"])
    mailbox = Mailbox(told["name"], run)
    mailbox.listen(told["addresses"][told["name"]])
    for peer in told["peers"]:
        mailbox.meet(peer, told["addresses"][peer])
    where = {(node, replica): site for node, replica, site in told["where"]}
    checked = check(load_text(told["graph"], told["title"]))
    layout = Layout(told["kinds"], where)
    beacon = Beacon(Mailbox(told["name"], run), told["addresses"][COORDINATOR])
    run_site(checked, layout, told["name"], Exchange(mailbox), told["seed"], beacon.watch)
    beacon.close()


def _die_with(parent: int) -> None:
    """End when the coordinator does, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it ended before we asked


if __name__ == "__main__":
    main()
