"""The limits of the collecting experiment, against cases that can be worked out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from bench import collector
from bench.peers import late, limits, sleeping
from bench.peers.sleeping import ENVS, Draws, Episode


class Even:
    """Every step takes 2, every call of the policy 1, every 4th step is followed by a reset of 5."""

    def __init__(self, *_: Any) -> None:
        pass

    def episode(self, env: int, number: int) -> Episode:
        return Episode(5.0 if number else 0.0, np.full(4, 2.0))

    def infer_s(self) -> float:
        return 1.0


def simulation(hidden: bool, late_s: list[float] | None = None) -> limits.Simulation:
    """The policy waits for all envs."""
    return limits.Simulation("small", 1, 0, hidden, ENVS, late_s or [0.0])


def test_where_nothing_varies_one_barrier_is_ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "Draws", Even)
    samples = 8 * ENVS
    # a batch of all envs: 3 a step, and 5 more after the fourth
    assert simulation(hidden=False).samples_s(samples) == 8 * 3 + 5
    assert simulation(hidden=True).samples_s(samples) == 8 * 3
    assert limits.ideal_s("small", 1, 0, samples, True) <= 8 * 3
    # ten steps of each env a collection
    assert simulation(hidden=True).collects_s(2) == 2 * 10 * 3
    assert limits.even_s("small", 1, 0, 2) == 2 * 10 * 3


def test_where_every_sleep_is_late_by_the_same_all_take_so_much_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "Draws", Even)
    assert simulation(True, [0.5]).samples_s(8 * ENVS) == 8 * (3 + 2 * 0.5)
    assert simulation(True, [0.5]).collects_s(1) == 10 * (3 + 2 * 0.5)
    for limit in (limits.even_s, lambda *given: limits.ideal_s(*given[:4], True, *given[4:])):
        assert limit("small", 1, 0, 2, [0.0]) == limit("small", 1, 0, 2)
        assert limit("small", 1, 0, 2, [0.25]) > limit("small", 1, 0, 2)


class OneIsSlow(Even):
    """The steps of env 0 take 10 and 2 in turns, those of the others 2 and 10: 6 on average."""

    def episode(self, env: int, number: int) -> Episode:
        return Episode(0.0, np.array([10.0, 2.0] if env else [2.0, 10.0]))


def test_who_need_not_wait_for_each_step_is_held_up_by_the_sum_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "Draws", OneIsSlow)
    assert simulation(True).collects_s(1) == 10 * (1 + 10)
    assert 10 * (1 + 6) <= limits.even_s("small", 1, 0, 1) <= 10 * (2 + 6)


def test_a_process_that_sleeps_tells_how_late_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(late.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(late.time, "sleep", lambda s: now.__setitem__(0, now[0] + s + 0.25))
    found = late.late_s(step_s=1.0, measure_s=20.0)
    assert found == pytest.approx([0.25] * len(found))
    assert 20 / 1.85 < len(found) < 20 / 0.65 + 1


def test_the_short_form_measures_what_is_said_beside_it() -> None:
    told = collector.parsed(["--quick", "--size", "small", "--load", "0.6"])
    assert (told.size, told.load, told.seeds) == (["small"], [0.6], 1)
    assert told.contender == collector.FASTEST
    every = collector.parsed([])
    assert (every.size, every.seeds) == ([*collector.COLLECTS], collector.SEEDS)
    assert len(every.contender) == len(collector.CONTENDERS)


@pytest.mark.parametrize("size", ["small", "middle", "big"])
def test_hidden_resets_are_never_slower_and_no_limit_beats_the_policy_alone(size: str) -> None:
    samples, infer_s = 400, sleeping.SIZES[size].infer_s
    hidden = limits.ideal_s(size, 5, 3, samples, True)
    overlapped = limits.ideal_s(size, 5, 3, samples, False)
    assert samples / ENVS * 0.4 * infer_s < hidden <= overlapped
    even = limits.even_s(size, 5, 3, samples // sleeping.SAMPLES)
    assert hidden <= even * 1.001


def test_what_is_drawn_belongs_to_the_episode_whoever_asks_and_when() -> None:
    a, b = Draws("small", 1, 7), Draws("small", 1, 7)
    late = [b.episode(env, k) for env, k in reversed([*itertools.product(range(3), range(3))])]
    for (env, k), other in zip(itertools.product(range(3), range(3)), reversed(late), strict=True):
        mine = a.episode(env, k)
        assert mine.reset_s == other.reset_s
        assert np.array_equal(mine.steps_s, other.steps_s)
    assert a.episode(0, 0).reset_s == 0.0  # is not on the clock
    assert a.infer_s() == b.infer_s() != a.infer_s()


def test_durations_are_those_of_the_document() -> None:
    draws = Draws("middle", 5, 0)
    episodes = [draws.episode(env, k) for env in range(8) for k in range(1, 12)]
    steps_s = np.concatenate([e.steps_s for e in episodes])
    assert 0.4 * 0.01 <= steps_s.min() < steps_s.max() <= 1.6 * 0.01
    assert steps_s.mean() == pytest.approx(0.01, rel=0.02)
    resets_s = [e.reset_s for e in episodes]
    assert 1.0 <= min(resets_s) < max(resets_s) <= 4.0
    assert all(200 <= len(e.steps_s) <= 800 for e in episodes)


def test_a_sleeper_sleeps_what_was_drawn_and_ends_when_its_episode_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(sleeping.time, "sleep", slept.append)
    sleeper = sleeping.Sleeper("small", 1, 0, env=2)
    for number in range(2):
        sleeper.reset()
        episode = Draws("small", 1, 0).episode(2, number)
        expected = [episode.reset_s] * (number > 0) + list(episode.steps_s)
        assert [sleeper.step() for _ in episode.steps_s].index(True) == len(episode.steps_s) - 1
        assert slept == expected
        slept.clear()


def test_the_table_says_what_was_to_be_reached_and_what_failed() -> None:
    found = {
        "A": {"ms": 1.0},
        "H": {"ms": 0.9},
        "H+": {"ms": 0.98},
        "D": {"ms": 0.95},
        "D+": {"ms": 0.96},
        "flowrl sync": {"ms": 1.0, "of_A": 1.0, "spread": 0.0},
        "flowrl independent": {"ms": 0.98, "of_A": 0.98, "spread": 0.0},
        "flowrl async": {"ms": 1.02, "of_A": 1.02, "spread": 0.01},
        "sb3 sync": {"ms": 1.25, "of_A": 1.25, "spread": 0.0},
        "ding sync": {"failed": "no network"},
    }
    assert collector.verdicts(found) == [
        "async 1.020 of A (at most 1.05), 1.041 of H+",
        "sync 0.784 of the best peer's (at most 0.9; D+ 0.768)",
    ]
    cell = {"size": "small", "resets": 5.0, "load": 0.6, "collects": 1, "found": found}
    shown = collector.table([cell])
    assert "| small ×5, 60% load | 1.000 | 0.900 | 0.980 | 0.950 | 0.960 |" in shown
    assert "no network" in shown
