"""One call that wakes several processes.

Whoever wakes them one by one may lose its core to the first of them, and where cores are busy gets it
back some milliseconds later: all the others wait for that. Linux can wake many sleepers at once.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from collections.abc import Iterable

NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # of the system call `futex`
WAIT_BITSET, WAKE_BITSET = 9, 10
ALL = 2**31 - 1  # of those who sleep
BITS = 32  # sleepers whose numbers are the same modulo this share a bit, and wake together
WORD = 2**32


def can_sleep_here() -> bool:
    """Whether the system has such a call; elsewhere every sleeper needs a bell of its own."""
    return sys.platform == "linux" and platform.machine() in NUMBERS


class Gong:
    """A word in shared memory that sleepers watch. Each stroke changes it, so none is missed."""

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        self._word = ctypes.c_uint32.from_buffer(memory, place)
        self._call = ctypes.CDLL(None).syscall
        self._call.argtypes = [ctypes.c_long] * 7
        self._call.restype = ctypes.c_long
        self._number = NUMBERS[platform.machine()]
        self._address = ctypes.addressof(self._word)
        self._heard = self._word.value

    def strike(self, sleepers: Iterable[int]) -> None:
        """Wake these; who is awake does not sleep the next time."""
        bits = 0
        for sleeper in sleepers:
            bits |= 1 << sleeper % BITS
        if bits:
            self._word.value = (self._word.value + 1) % WORD
            self._call(self._number, self._address, WAKE_BITSET, ALL, 0, 0, bits)

    def sleep(self, sleeper: int) -> None:
        """Until it is struck for this sleeper, or something else happens; or not, if it was since the last time."""
        bit = 1 << sleeper % BITS
        self._call(self._number, self._address, WAIT_BITSET, self._heard, 0, 0, bit)
        self._heard = self._word.value
