"""What the C library does with memory that this process has freed: it keeps it, or gives it back to the system."""

from __future__ import annotations

import ctypes
import functools

KEPT_BYTES = 256 * 2**20
LARGEST_KEPT_BYTES = 32 * 2**20  # of one allocation; glibc takes no larger number
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of `mallopt` in malloc.h


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MB of freed memory for the next allocations; other C libraries are left as they are.

    A train iteration allocates and frees the same large tensors as the one before. Where their memory goes back to the
    system in between, each of their pages is mapped and cleared again, which can take longer than the computation.
    glibc does not tell what was set before, so this lasts until the process ends.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
