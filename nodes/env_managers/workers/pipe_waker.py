"""Wakes sleeping threads and processes with pipes: the manager everywhere, and workers where there is no futex."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class PipeWaker:
    """A pipe to sleep at. Several wake-ups before the sleeper reads count as one."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.write_fd, False)

    def wake(self) -> None:
        """Wake the sleeper. If it is awake, its next sleep ends at once."""
        write_wakeup(self.write_fd)

    def close(self) -> None:
        """Close both ends, once: their numbers may be reused for other files afterwards."""
        fds, self.read_fd, self.write_fd = (self.read_fd, self.write_fd), -1, -1
        for fd in fds:
            with suppress(OSError):
                os.close(fd)


class ManagerWaker(PipeWaker):
    """Wakes the manager, which sleeps with a deadline."""

    def __init__(self) -> None:
        super().__init__()
        os.set_blocking(self.read_fd, False)
        self._poll = select.poll()
        self._poll.register(self.read_fd, select.POLLIN)

    def sleep(self, timeout_s: float) -> None:
        """Sleep until a wake-up, or for this time."""
        if self._poll.poll(max(timeout_s * 1000, 0)):
            with suppress(BlockingIOError):
                os.read(self.read_fd, 4096)


def write_wakeup(write_fd: int) -> None:
    """Wake the reader of a pipe. If it is full, the reader will wake anyway."""
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(write_fd, b".")
