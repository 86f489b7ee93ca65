"""An adaptive wait spins before sleeping: for a bounded time, and only while recent waits were short."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.nodes.env_managers.workers import adaptive_wait
from flowrl.nodes.env_managers.workers.adaptive_wait import (
    MAX_COUNTED_WAIT_S,
    MAX_SPIN_S,
    AdaptiveWait,
)


class FakeTime:
    """A clock that advances only when the core is yielded."""

    def __init__(self) -> None:
        self.now_s, self.yields = 0.0, 0

    def perf_counter(self) -> float:
        return self.now_s

    def yield_core(self) -> None:
        self.yields += 1
        self.now_s += MAX_SPIN_S / 10


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(adaptive_wait, "time", fake)
    monkeypatch.setattr(adaptive_wait, "yield_core", fake.yield_core)
    return fake


def test_spinning_yields_the_core_until_the_condition_holds(time: FakeTime) -> None:
    assert AdaptiveWait().spin(lambda: time.yields == 3)
    assert time.yields == 3


def test_spinning_ends_after_a_bounded_time(time: FakeTime) -> None:
    assert not AdaptiveWait().spin(lambda: False)
    assert MAX_SPIN_S < time.now_s < 1.5 * MAX_SPIN_S


def record_waits(time: FakeTime, wait: AdaptiveWait, took_s: float, times: int) -> None:
    for _ in range(times):
        since_s = time.now_s
        time.now_s += took_s
        wait.record_wait(since_s)


def test_after_long_waits_there_is_no_spinning_until_waits_are_short_again(time: FakeTime) -> None:
    wait = AdaptiveWait()
    record_waits(time, wait, 5.0, 5)
    assert not wait.spin(lambda: False)
    assert time.yields == 0
    record_waits(time, wait, MAX_SPIN_S / 4, 30)
    assert wait.spin(lambda: time.yields == 2)


def test_one_long_wait_does_not_stop_the_spinning(time: FakeTime) -> None:
    wait = AdaptiveWait()
    record_waits(time, wait, MAX_SPIN_S / 4, 10)
    record_waits(time, wait, 1000 * MAX_COUNTED_WAIT_S, 1)
    assert wait.spin(lambda: time.yields == 1)


def test_with_a_spin_time_of_zero_the_condition_is_tested_once(time: FakeTime) -> None:
    calls: list[Any] = []
    assert not AdaptiveWait(0.0).spin(lambda: bool(calls.append(1)))
    assert (len(calls), time.yields) == (1, 0)
