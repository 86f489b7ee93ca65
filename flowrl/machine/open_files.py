"""The number of files that this process may have open."""

from __future__ import annotations

import os
import resource


def raise_open_file_limit(more: int) -> str | None:
    """Let this process, and those that it starts, open this many more files; if that is not allowed, say why."""
    needed = len(os.listdir("/dev/fd")) + more
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft or soft == resource.RLIM_INFINITY:
        return None
    if needed > hard != resource.RLIM_INFINITY:
        return f"{needed} open files in one process are needed, and {hard} are allowed"
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return None
