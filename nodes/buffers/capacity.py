"""How many rows a buffer may hold: in rows, in bytes, and in what this machine has."""

from __future__ import annotations

import os
import re
from pathlib import Path

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
PATTERN = r"^\d+(\.\d+)? ?([KMGT]i?)?B$"  # 800MB, 1.5 GB, 2GiB
MEMORY = (
    Path("/proc/meminfo"),
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def size_in_bytes(text: str) -> int:
    """`2GB` is 2 * 10**9, `2GiB` is 2 * 2**30."""
    found = re.match(r"^(\d+(?:\.\d+)?) ?([KMGT]?)(i?)B$", text)
    if found is None:
        raise ValueError(f"'{text}' is not a size; write for instance 800MB, 1.5GB or 2GiB")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 ** "_KMGT".index(unit) if binary else UNITS[unit]))


def rows_for(size: int, size_bytes: str | None, bytes_of_row: int) -> int:
    """The rows that both limits allow."""
    if size_bytes is None:
        return size
    allowed = size_in_bytes(size_bytes) // max(bytes_of_row, 1)
    if allowed < 1:
        raise ValueError(f"a row takes {bytes_of_row} bytes, size_bytes is {size_bytes}")
    return min(size, allowed)


def available_bytes() -> int | None:
    """What can still be allocated without swapping; None where the system does not say."""
    found = []
    for line in _lines(MEMORY[0]):
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit in MEMORY[1:]:
        found += [int(line) for line in _lines(limit) if line.isdigit()]
    return min(found, default=None)


def must_fit(wanted_bytes: int, what: str = "the buffer") -> None:
    """Refuse what memory cannot hold, before it is allocated and the system kills somebody."""
    free = available_bytes()
    if free is not None and wanted_bytes > free:
        raise MemoryError(
            f"{what} would take {wanted_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
            "make `size` smaller, or say `size_bytes`"
        )


def take_from_disk(file: int, path: Path, wanted_bytes: int) -> None:
    """Make a file so long, all of it on the disk: a full one is an error now, and not a signal later."""
    try:
        os.posix_fallocate(file, 0, wanted_bytes)
    except OSError as failed:
        raise OSError(
            failed.errno,
            f"'{path}' cannot take {wanted_bytes / 1e9:.3f} GB: {failed.strerror}; "
            "make `size` smaller, or give a `path` on another disk",
        ) from failed


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
