"""Tracebacks of crashes in a program that uses flowrl, printed to its standard error by `faulthandler`."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def crash_tracebacks() -> Iterator[None]:
    """Print a traceback if this process crashes meanwhile. Afterwards it does what it did before."""
    with _CRASHES.traced():
        yield


class CrashTracebacks:
    """The handler of crashes, which checks and runs in several threads may need at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._is_ours = False  # not enabled by the program itself

    @contextmanager
    def traced(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                self._is_ours = not faulthandler.is_enabled()
                if self._is_ours:
                    faulthandler.enable(2)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._is_ours:
                    faulthandler.disable()


_CRASHES = CrashTracebacks()  # one, because a process has one handler
