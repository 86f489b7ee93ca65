"""Looking before sleeping: for a short while, and only by those whose waits were short lately."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.nodes.env_managers.workers import patience
from flowrl.nodes.env_managers.workers.patience import FAR_S, MOST_S, Patience


class Time:
    """A clock that goes on only when somebody gives way."""

    def __init__(self) -> None:
        self.now_s, self.given_way = 0.0, 0

    def perf_counter(self) -> float:
        return self.now_s

    def give_way(self) -> None:
        self.given_way += 1
        self.now_s += MOST_S / 10


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(patience, "time", made)
    monkeypatch.setattr(patience, "give_way", made.give_way)
    return made


def test_what_comes_soon_is_seen_and_others_have_the_core_meanwhile(time: Time) -> None:
    assert Patience().look(lambda: time.given_way == 3)
    assert time.given_way == 3


def test_it_looks_for_a_bounded_time(time: Time) -> None:
    assert not Patience().look(lambda: False)
    assert MOST_S < time.now_s < 1.5 * MOST_S


def waits(time: Time, patient: Patience, took_s: float, times: int) -> None:
    for _ in range(times):
        since_s = time.now_s
        time.now_s += took_s
        patient.waited(since_s)


def test_who_waits_long_sleeps_at_once_until_waits_are_short_again(time: Time) -> None:
    patient = Patience()
    waits(time, patient, 5.0, 5)
    assert not patient.look(lambda: False)
    assert time.given_way == 0
    waits(time, patient, MOST_S / 4, 30)
    assert patient.look(lambda: time.given_way == 2)


def test_one_long_wait_is_not_the_rule(time: Time) -> None:
    patient = Patience()
    waits(time, patient, MOST_S / 4, 10)
    waits(time, patient, 1000 * FAR_S, 1)
    assert patient.look(lambda: time.given_way == 1)


def test_without_patience_it_is_looked_at_once(time: Time) -> None:
    looks: list[Any] = []
    assert not Patience(0.0).look(lambda: bool(looks.append(1)))
    assert (len(looks), time.given_way) == (1, 0)
