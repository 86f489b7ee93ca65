"""What stops a run: the first Ctrl-C, SIGTERM or `flowrl stop` asks for a cut, and the second one ends it at once.

A closed terminal (SIGHUP) asks for a cut, too. It never ends a run at once, because shell and system may both send it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flowrl.core.errors import UsageError
from flowrl.machine.closed_terminal import leave_closed_terminal, obeys_hangup
from flowrl.runtime.interruptions import RunInterrupted


class StopRequests:
    """The requests to stop one run, in the order in which they arrive."""

    def __init__(self, ask_for_cut: Callable[[str], None]) -> None:
        """`ask_for_cut` is called with the name of the signal or command that asks for a cut."""
        self._ask_for_cut = ask_for_cut
        self.has_cut = False  # whether somebody has asked for a cut
        self.can_cut = False  # otherwise a signal stops the run at once
        self._signals = 0
        self._is_uninterruptible = self._is_interrupted = False
        self._thread = threading.current_thread()

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Obey signals. This thread is the one that is stopped at once."""
        self._thread = threading.current_thread()
        with handling_signals(self._on_signal):
            yield

    def stop(self, now: bool = False) -> None:
        """Ask for a cut, as Ctrl-C does, or end the run at once, as a second Ctrl-C does. Any thread may call this."""
        if not now:
            self.has_cut = True
            self._ask_for_cut("flowrl stop")
        elif self._thread is threading.main_thread():
            self._signals = max(self._signals, 1)
            signal.pthread_kill(self._thread.ident or 0, signal.SIGINT)
        else:
            raise UsageError(
                "it runs in a thread of another program, and only that program can end it at once"
            )

    def _on_signal(self, name: str) -> None:
        self._signals += 1
        if self._signals > 1 or not self.can_cut:
            may_wait = self._is_uninterruptible and not self._is_interrupted
            self._is_interrupted = True
            if may_wait:
                return
            raise RunInterrupted
        self.has_cut = True
        self._ask_for_cut(name)

    def is_interruption(self, error: BaseException) -> bool:
        """Whether the run was stopped at once. At a bad moment, this makes Python's locks raise errors of their own."""
        return isinstance(error, RunInterrupted) or self._is_interrupted

    def forget_interruption(self) -> None:
        """Let the run end with its result, although it was stopped at once."""
        self._is_interrupted = False

    @contextmanager
    def interrupted_afterwards(self) -> Iterator[None]:
        """Let what stops the run at once wait until this is done, so that records are whole and locks are released.

        If this blocks, such as on a full pipe, the next signal does not wait.
        """
        self._is_uninterruptible = True
        try:
            yield
        finally:
            self._is_uninterruptible = False
        if self._is_interrupted:
            raise RunInterrupted


@contextmanager
def handling_signals(on_signal: Callable[[str], None]) -> Iterator[None]:
    """Call `on_signal` with the name of each SIGINT and SIGTERM, and of a SIGHUP that comes first.

    Python delivers signals to the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    has_ended = is_asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal is_asked
        if number == signal.SIGHUP:
            leave_closed_terminal()
            if is_asked:
                return
        is_asked = True
        if not has_ended:  # otherwise an exception would leave a handler in its place
            on_signal(signal.Signals(number).name)

    hangup = (signal.SIGHUP,) if obeys_hangup() else ()
    before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM, *hangup)}
    try:
        yield
    finally:
        has_ended = True
        for number, handler in before.items():
            signal.signal(number, handler)
