"""Limits of a buffer's size: rows, bytes, free memory and free disk space."""

from __future__ import annotations

import os
from pathlib import Path

from flowrl.core.sizes import parse_bytes
from flowrl.machine.resource_limits import free_memory_bytes


def max_rows(size: int, size_bytes: str | None, row_bytes: int) -> int:
    """Return the number of rows that both limits allow."""
    if size_bytes is None:
        return size
    allowed = parse_bytes(size_bytes) // max(row_bytes, 1)
    if allowed < 1:
        raise ValueError(f"a row takes {row_bytes} bytes, but size_bytes is {size_bytes}")
    return min(size, allowed)


def require_memory(required_bytes: int, what: str = "the buffer") -> None:
    """Refuse an allocation that exceeds the free memory, for which the system would kill a process."""
    free = free_memory_bytes()
    if free is not None and required_bytes > free:
        raise MemoryError(
            f"{what} would take {required_bytes / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free; "
            "reduce `size`, or set `size_bytes`"
        )


def preallocate(file: int, path: Path, required_bytes: int) -> None:
    """Reserve the disk space of a file, so that a full disk is an error now and not a signal later."""
    try:
        os.posix_fallocate(file, 0, required_bytes)
    except OSError as failed:
        raise OSError(
            failed.errno,
            f"'{path}' cannot take {required_bytes / 1e9:.3f} GB: {failed.strerror}; "
            "reduce `size`, or set `path` to a folder on another disk",
        ) from failed
