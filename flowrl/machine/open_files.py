"""How many files a process may have open: sites need some, and more for each peer in another process."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping

from flowrl.core.errors import UsageError

SITE = 16  # of one site: sockets, and what wakes those who wait on them
PEER = 6  # for each such peer
OTHERS = 64  # files of nodes and libraries, beside those that are open already


def allow_files(here: Iterable[str], peers: Mapping[str, list[str]]) -> None:
    """Raise this process's limit, which those that it starts inherit, if its sites or one of those need more.

    `here` are the sites in this process.
    """
    near = frozenset(here)
    needs = {name: SITE + PEER * len(set(others) - near) for name, others in peers.items()}
    most = max(sum(needs[name] for name in near), *needs.values())
    needed = len(os.listdir("/dev/fd")) + OTHERS + most
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return
    if needed > hard != resource.RLIM_INFINITY:
        raise UsageError(
            f"placement: its {len(peers) - 1} sites need {needed} open files in one process, and {hard} are allowed; "
            "raise that (ulimit -Hn), or let more nodes share a site"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
