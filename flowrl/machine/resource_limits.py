"""How much memory this process may use, and how many files it may have open."""

from __future__ import annotations

import os
import resource
from pathlib import Path

USUAL_FILES = 8192  # many systems allow 1024 until a process asks for more


def machine_memory_bytes() -> int | None:
    """Return the machine's memory, or the limit of the process's control group if that is lower."""
    limits = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limits += [int(line) for line in _lines(path) if line.strip().isdigit()]
    return min(limits, default=None)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def raise_open_file_limit(more: int) -> str | None:
    """Let this process and its children open this many more files; if that is not allowed, return why.

    A low limit is raised further than needed, because connections, nodes and libraries open files later.
    """
    needed = len(os.listdir("/dev/fd")) + more
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        return f"{needed} open files in one process are needed, and {hard} are allowed"
    wanted = max(needed, USUAL_FILES)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return None
