"""Deadlines where an env shares the process, and nobody can end it: what is late is seen and told."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

HINT = "it shares this process, so nobody can end it: sync_subprocess_env_manager could"


class Watchdog:
    """Watches over calls in one thread, from another; works in any thread, with no signal."""

    def __init__(
        self, limits: Mapping[str, float | None], late: Callable[[int, str, float], None]
    ) -> None:
        """`late` is told of each call that took too long, when it is over."""
        self._limits, self._late = limits, late
        self._under_way: tuple[int, str, float, float, int] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watched(self, doing: str, index: int, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call itself, where there is no limit; else one that is watched."""
        limit_s, clock, thread = self._limits[doing], time.monotonic, threading.get_ident
        if limit_s is None:
            return call

        def watched(*given: Any, **named: Any) -> Any:
            if self._thread is None:
                self._begin()
            begun_s = clock()
            self._under_way = (index, doing, begun_s, limit_s, thread())
            try:
                return call(*given, **named)
            finally:
                self._under_way = None
                took_s = clock() - begun_s
                if took_s > limit_s:
                    self._late(index, doing, took_s)

        return watched

    def _begin(self) -> None:
        self._closed.clear()
        self._thread = threading.Thread(target=self._watch, name="flowrl-watchdog", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        every_s = min(limit for limit in self._limits.values() if limit is not None) / 4
        told = None
        while not self._closed.wait(every_s):
            found = self._under_way
            if found is not None and found is not told:
                index, doing, begun_s, limit_s, thread = found
                if time.monotonic() - begun_s > limit_s:
                    told = found
                    _tell(index, doing, limit_s, thread)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _tell(index: int, doing: str, limit_s: float, thread: int) -> None:
    frame = sys._current_frames().get(thread)
    where = "".join(traceback.format_stack(frame)) if frame else ""
    text = f"flowrl: env {index}: {doing} has taken longer than {limit_s:g} s; {HINT}; it is here:"
    print(f"{text}\n{where}", file=sys.stderr, flush=True)
