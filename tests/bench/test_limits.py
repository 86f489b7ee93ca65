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


def test_where_nothing_varies_one_barrier_is_ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "Draws", Even)
    samples = 8 * ENVS
    assert limits.together_s("small", 1, 0, samples) == 8 * 3
    # a batch of all envs: 3 a step, and 5 more after the fourth
    assert limits._served_s("small", 1, 0, samples, False, ENVS) == 8 * 3 + 5
    assert limits._served_s("small", 1, 0, samples, True, ENVS) == 8 * 3
    assert limits.ideal_s("small", 1, 0, samples, True) <= 8 * 3


def test_where_every_sleep_is_late_by_the_same_all_take_so_much_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "Draws", Even)
    assert limits._served_s("small", 1, 0, 8 * ENVS, True, ENVS, [0.5]) == 8 * (3 + 2 * 0.5)
    assert limits.late_s("small", 1, 0, 64, [0.0]) == limits.ideal_s("small", 1, 0, 64, True)


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
    assert hidden <= limits.together_s(size, 5, 3, samples) * 1.001


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
        "L": {"ms": 0.95},
        "S": {"ms": 0.98},
        "flowrl sync": {"ms": 1.0, "of_A": 1.0, "spread": 0.0},
        "flowrl halves": {"ms": 0.98, "of_A": 0.98, "spread": 0.0},
        "flowrl async": {"ms": 1.02, "of_A": 1.02, "spread": 0.01},
        "sb3 sync": {"ms": 1.25, "of_A": 1.25, "spread": 0.0},
        "ding sync": {"failed": "no network"},
    }
    assert collector.verdicts(found) == [
        "async 1.020 of A (at most 1.05), 1.041 of S",
        "sync 0.784 of the best peer's (at most 0.9)",
    ]
    cell = {"size": "small", "resets": 5.0, "load": 0.6, "collects": 1, "found": found}
    shown = collector.table([cell])
    assert "| small ×5, 60% load | 1.000 | 0.900 | 0.950 | 0.980 |" in shown
    assert "no network" in shown
