"""Asks Linux to wake threads sooner, for threads that run for short moments.

Each step wakes a worker, and the last result wakes the manager. Two defaults of Linux delay them:

- A thread may wait until others on its core have used up a time slice of some milliseconds. Since Linux 6.12 a thread
  may request shorter slices. Its share of the processor stays the same, but comes sooner. Older kernels ignore this.
- Sleeps, and waits with a deadline, may end 50 µs late, so that several wake-ups can be handled as one. An env that
  waits for a simulator sleeps in each step, so its timers should be precise.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SLICE_NS = 100_000  # the shortest slice that Linux grants
SCHED_SETATTR_NUMBERS = {"x86_64": 314, "aarch64": 274, "riscv64": 274}  # of the system call
# `struct sched_attr`: size, policy, flags, nice, priority, slice, and two times of other policies.
SCHED_ATTR = struct.Struct("=IIQiIQQQ")
PR_SET_TIMERSLACK = 29
PRECISE_SLACK_NS = 1  # 0 would mean the default


def request_short_slices() -> bool:
    """Request short slices for this thread and those it starts later. Return whether the system accepted."""
    number = SCHED_SETATTR_NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False  # another policy was set on purpose
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = SCHED_ATTR.pack(SCHED_ATTR.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)


def request_precise_timers() -> bool:
    """Request precise timers for this thread and those it starts later. Return whether the system accepted."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, PRECISE_SLACK_NS, 0, 0, 0) == 0)
