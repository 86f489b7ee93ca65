"""Wakes any subset of worker processes with one futex system call (Linux).

Waking workers one by one is slow on busy cores: the first worker woken may preempt the caller, and the rest
wait until the caller is scheduled again. FUTEX_WAKE_BITSET wakes all of them at once.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Iterable

FUTEX_CALL_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
WAIT_BITSET, WAKE_BITSET = 9, 10
ALL_WAITERS = 2**31 - 1
BITS = 32  # workers whose numbers are equal modulo this share a bit, and wake together
COUNTER_END = 2**32


def futex_is_available() -> bool:
    """Whether this system has the call; elsewhere each worker needs a `PipeWaker`."""
    return sys.platform == "linux" and platform.machine() in FUTEX_CALL_NUMBERS


class FutexWaker:
    """A counter in shared memory.

    Each wake-up increments it, so a worker that was about to sleep notices the change.
    """

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._counter = ctypes.c_uint32.from_buffer(memory, offset)
        self._call = ctypes.CDLL(None).syscall
        self._call.argtypes = [ctypes.c_long] * 7
        self._call.restype = ctypes.c_long
        self._number = FUTEX_CALL_NUMBERS[platform.machine()]
        self._address = ctypes.addressof(self._counter)
        self._last_count = self._counter.value

    def wake(self, workers: Iterable[int]) -> None:
        """Wake these workers. One that is awake returns at once from its next `sleep`."""
        bits = 0
        for worker in workers:
            bits |= 1 << worker % BITS
        if bits:
            self._counter.value = (self._counter.value + 1) % COUNTER_END
            self._call(self._number, self._address, WAKE_BITSET, ALL_WAITERS, 0, 0, bits)

    def sleep(self, worker: int) -> None:
        """Sleep until `wake` names this worker; return at once if the counter changed since the last call.

        May also return spuriously.
        """
        bit = 1 << worker % BITS
        self._call(self._number, self._address, WAIT_BITSET, self._last_count, 0, 0, bit)
        self._last_count = self._counter.value
