"""Woken soon: what Linux does for those who only wake for a moment, if they ask for it.

A step wakes a worker, and the last result wakes its manager. By default Linux may let each of them
wait until what else runs on its core has used up a slice of some milliseconds. Since 6.12 a thread may
ask for shorter slices: its share stays what it is, but comes sooner. Older kernels take no notice.

Sleeps, and waits with a deadline, may by default end 50 µs late, so that several wakings become one.
An env that waits for a simulator sleeps at each step: its timers had better be exact.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SLICE_NS = 100_000  # the shortest that Linux gives
NUMBERS = {"x86_64": 314, "aarch64": 274, "riscv64": 274}  # of the system call `sched_setattr`
ATTRIBUTES = struct.Struct(
    "=IIQiIQQQ"
)  # size, policy, flags, nice, priority, slice, two more times
PR_SET_TIMERSLACK = 29


def request_short_slices() -> bool:
    """For this thread and what it starts from now on; whether the system understood."""
    number = NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False  # it was given another policy, which has reasons of its own
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    words = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, words, 0) == 0)


def request_precise_timers() -> bool:
    """For this thread and what it starts from now on; whether the system understood."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0) == 0)  # ns; 0: the default
