"""Reports calls of envs in this process that exceed their deadline. Nothing can interrupt them."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

HINT = (
    "an env in this process cannot be interrupted; sync_subprocess_env_manager replaces its worker"
)


class WatchedCall(NamedTuple):
    """A call that has not returned."""

    env: int
    name: str
    since_s: float
    limit_s: float
    thread: int


class Watchdog:
    """Watches the calls of one thread from another. It needs no signals, so it works in any thread."""

    def __init__(
        self, limits_s: Mapping[str, float | None], report_late: Callable[[int, str, float], None]
    ) -> None:
        """`limits_s` is by the name of a call. `report_late` is called after each call that took too long."""
        self._limits_s, self._report_late = limits_s, report_late
        self._current: WatchedCall | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, name: str, index: int, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call of env `index`; without a limit, return the call itself."""
        limit_s, clock, thread = self._limits_s[name], time.monotonic, threading.get_ident
        if limit_s is None:
            return call

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._thread is None:
                self._start()
            since_s = clock()
            self._current = WatchedCall(index, name, since_s, limit_s, thread())
            try:
                return call(*args, **kwargs)
            finally:
                self._current = None
                took_s = clock() - since_s
                if took_s > limit_s:
                    self._report_late(index, name, took_s)

        return watched

    def _start(self) -> None:
        self._closed.clear()
        self._thread = threading.Thread(target=self._run, name="flowrl-watchdog", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        interval_s = min(limit for limit in self._limits_s.values() if limit is not None) / 4
        reported = None
        while not self._closed.wait(interval_s):
            current = self._current
            if current is None or current is reported:
                continue
            if time.monotonic() - current.since_s > current.limit_s:
                reported = current
                _print_stack(current)

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _print_stack(call: WatchedCall) -> None:
    frame = sys._current_frames().get(call.thread)
    stack = "".join(traceback.format_stack(frame)) if frame else ""
    text = f"flowrl: env {call.env}: {call.name} has taken longer than {call.limit_s:g} s; {HINT}; its stack:"
    print(f"{text}\n{stack}", file=sys.stderr, flush=True)
