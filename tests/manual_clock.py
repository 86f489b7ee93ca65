"""A clock for tests."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when a test sets `now_s`."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s
