"""How much memory this process may use, and how many files it may have open."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from flowrl.machine.control_groups import control_group_files, read_lines

MEMORY_FILES = (
    Path("/proc/meminfo"),
    *control_group_files("memory.max", "memory", "memory.limit_in_bytes"),
)
USUAL_FILES = 8192  # many systems allow 1024 until a process asks for more
NO_MEMORY = (  # in the errors of Python, the dynamic linker and torch
    "can't start new thread",
    "failed to map segment",
    "cannot allocate memory",
    "can't allocate memory",
)


def machine_memory_bytes() -> int | None:
    """Return the machine's memory, or the limit of the process's control group if that is lower; None if unknown."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if limits[0] <= 0:
        return None
    return min([*limits, *_group_limits()])


def free_memory_bytes() -> int | None:
    """Return the memory that can be allocated without swapping, or None if the system does not report it."""
    lines = read_lines(MEMORY_FILES[0])
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*free, *_group_limits()], default=None)


def _group_limits() -> list[int]:
    """Return the limits of the process's control groups."""
    lines = [line for path in MEMORY_FILES[1:] for line in read_lines(path)]
    return [int(line) for line in lines if line.strip().isdigit()]


def raise_open_file_limit(more: int) -> str | None:
    """Let this process and its children open this many more files; if that is not allowed, return why.

    A low limit is raised further than needed, because connections, nodes and libraries open files later.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open_files(soft) + more
    if hard != resource.RLIM_INFINITY and needed > hard:
        return f"{needed} open files in one process are needed, and {hard} are allowed"
    wanted = max(needed, USUAL_FILES)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return None


def _open_files(limit: int) -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:  # without /proc
        return sum(map(_is_open, range(limit if limit != resource.RLIM_INFINITY else USUAL_FILES)))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def address_space_shortage(error: BaseException) -> str:
    """Return in words that a limit of this process's address space explains an error; empty if it does not."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or not any(map(_is_for_want_of_memory, _causes(error))):
        return ""
    return f"the address space of a process is limited to {limit / 1e6:,.0f} MB, which is too little: raise `ulimit -v`"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_for_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    text = str(error).lower()
    return any(words in text for words in NO_MEMORY)
