"""`python -m bench collector`: its limits against cases worked out by hand, its durations, and its table."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import _published_collector as published
from bench import collector
from bench.peers import collect_limits, sleep_experiment, sleep_overrun
from bench.peers.sleep_experiment import ENVS, Durations, EpisodeDurations


class EqualDurations:
    """A step takes 2, a call of the policy 1, and the reset after every fourth step 5."""

    def __init__(self, *_: Any) -> None:
        pass

    def episode(self, env: int, number: int) -> EpisodeDurations:
        return EpisodeDurations(5.0 if number else 0.0, np.full(4, 2.0))

    def next_inference_s(self) -> float:
        return 1.0


def simulation(
    reset_in_advance: bool, overruns_s: list[float] | None = None
) -> collect_limits.Simulation:
    """A simulation whose policy waits for all envs."""
    return collect_limits.Simulation("small", 1, 0, reset_in_advance, ENVS, overruns_s or [0.0])


def test_with_equal_durations_it_is_best_to_step_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_limits, "Durations", EqualDurations)
    samples = 8 * ENVS
    # 3 for each step of all envs, and 5 more after the fourth
    assert simulation(False).time_of_samples_s(samples) == 8 * 3 + 5
    assert simulation(True).time_of_samples_s(samples) == 8 * 3
    assert collect_limits.free_limit_s("small", 1, 0, samples, True) <= 8 * 3
    # a collection has ten steps of each env
    assert simulation(True).time_of_collections_s(2) == 2 * 10 * 3
    assert collect_limits.deterministic_limit_s("small", 1, 0, 2) == 2 * 10 * 3


def test_equal_overruns_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_limits, "Durations", EqualDurations)
    assert simulation(True, [0.5]).time_of_samples_s(8 * ENVS) == 8 * (3 + 2 * 0.5)
    assert simulation(True, [0.5]).time_of_collections_s(1) == 10 * (3 + 2 * 0.5)

    def free_limit_s(*arguments: Any) -> float:
        return collect_limits.free_limit_s(*arguments[:4], True, *arguments[4:])

    for limit_s in (collect_limits.deterministic_limit_s, free_limit_s):
        assert limit_s("small", 1, 0, 2, [0.0]) == limit_s("small", 1, 0, 2)
        assert limit_s("small", 1, 0, 2, [0.25]) > limit_s("small", 1, 0, 2)


class OneSlowEnv(EqualDurations):
    """Steps take 2 and 10 in alternation, so 6 on average; env 0 begins with 2, the others with 10."""

    def episode(self, env: int, number: int) -> EpisodeDurations:
        return EpisodeDurations(0.0, np.array([10.0, 2.0] if env else [2.0, 10.0]))


def test_envs_that_do_not_wait_for_each_step_only_need_the_sum_of_their_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collect_limits, "Durations", OneSlowEnv)
    assert simulation(True).time_of_collections_s(1) == 10 * (1 + 10)
    limit_s = collect_limits.deterministic_limit_s("small", 1, 0, 1)
    assert 10 * (1 + 6) <= limit_s <= 10 * (2 + 6)


def test_sleep_overruns_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    clock = sleep_overrun.time
    monkeypatch.setattr(clock, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clock, "sleep", lambda s: now.__setitem__(0, now[0] + s + 0.25))
    overruns_s = sleep_overrun.sleep_overruns_s(step_s=1.0, measure_s=20.0)
    assert overruns_s == pytest.approx([0.25] * len(overruns_s))
    assert 20 / 1.85 < len(overruns_s) < 20 / 0.65 + 1


def test_options_beside_quick_override_it() -> None:
    quick = collector.parse_arguments(["--quick", "--size", "small", "--load", "0.6"])
    assert (quick.size, quick.load, quick.seeds) == (["small"], [0.6], 1)
    assert quick.contender == collector.FASTEST
    full = collector.parse_arguments([])
    assert (full.size, full.seeds) == ([*collector.COLLECTIONS], collector.SEEDS)
    assert len(full.contender) == 1 + len(collector.CONTENDERS)  # and the base manager


@pytest.mark.parametrize("size", ["small", "middle", "big"])
def test_resets_in_advance_are_never_slower_and_no_limit_is_below_the_policys_time(
    size: str,
) -> None:
    samples, infer_s = 400, sleep_experiment.SIZES[size].infer_s
    in_advance_s = collect_limits.free_limit_s(size, 5, 3, samples, True)
    overlapping_s = collect_limits.free_limit_s(size, 5, 3, samples, False)
    assert samples / ENVS * 0.4 * infer_s < in_advance_s <= overlapping_s
    collections = samples // sleep_experiment.SAMPLES
    deterministic_s = collect_limits.deterministic_limit_s(size, 5, 3, collections)
    assert in_advance_s <= deterministic_s * 1.001


def test_durations_of_an_episode_do_not_depend_on_the_order_of_calls() -> None:
    a, b = Durations("small", 1, 7), Durations("small", 1, 7)
    episodes = [*itertools.product(range(3), range(3))]
    from_b = [b.episode(env, k) for env, k in reversed(episodes)]
    for (env, k), other in zip(episodes, reversed(from_b), strict=True):
        episode = a.episode(env, k)
        assert episode.reset_s == other.reset_s
        assert np.array_equal(episode.steps_s, other.steps_s)
    assert a.episode(0, 0).reset_s == 0.0  # off the clock
    assert a.next_inference_s() == b.next_inference_s() != a.next_inference_s()


def test_durations_are_those_of_the_document() -> None:
    durations = Durations("middle", 5, 0)
    episodes = [durations.episode(env, k) for env in range(8) for k in range(1, 12)]
    steps_s = np.concatenate([e.steps_s for e in episodes])
    assert 0.4 * 0.01 <= steps_s.min() < steps_s.max() <= 1.6 * 0.01
    assert steps_s.mean() == pytest.approx(0.01, rel=0.02)
    resets_s = [e.reset_s for e in episodes]
    assert 1.0 <= min(resets_s) < max(resets_s) <= 4.0
    assert all(200 <= len(e.steps_s) <= 800 for e in episodes)


def test_a_sleeping_env_sleeps_for_its_durations_and_ends_with_its_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(sleep_experiment.time, "sleep", slept.append)
    env = sleep_experiment.SleepingEnv("small", 1, 0, env=2)
    for number in range(2):
        env.reset()
        episode = Durations("small", 1, 0).episode(2, number)
        expected = [episode.reset_s] * (number > 0) + list(episode.steps_s)
        assert [env.step() for _ in episode.steps_s].index(True) == len(episode.steps_s) - 1
        assert slept == expected
        slept.clear()


def test_the_table_compares_with_targets_and_shows_failures() -> None:
    results = {
        "A": {"ms": 1.0},
        "H": {"ms": 0.9},
        "H+": {"ms": 0.98},
        "D": {"ms": 0.95},
        "D+": {"ms": 0.96},
        "flowrl sync": {"ms": 1.0, "ratio_to_a": 1.0, "spread": 0.0},
        "flowrl independent": {"ms": 0.98, "ratio_to_a": 0.98, "spread": 0.0},
        "flowrl async": {"ms": 1.02, "ratio_to_a": 1.02, "spread": 0.01},
        "sb3 sync": {"ms": 1.25, "ratio_to_a": 1.25, "spread": 0.0},
        "ding sync": {"failed": "no network"},
    }
    assert collector.compare_with_targets(results) == [
        "async 1.020 of A (at most 1.05), 1.041 of H+",
        "sync 0.784 of the best peer's (at most 0.9; D+ 0.768)",
    ]
    cell = {"size": "small", "reset_factor": 5.0, "load": 0.6, "found": results}
    table = collector.table([cell])
    assert "| small ×5, 60% load | 1.000 | 0.900 | 0.980 | 0.950 | 0.960 |" in table
    assert "| flowrl sync |" in table
    assert "no network" in table


class FakeContender:
    """Takes no time; its second run fails at first."""

    name = "fake_sync"

    def __init__(self) -> None:
        self.measured: list[list[str]] = []

    def run(self, task: str, words: list[str], timeout_s: float) -> dict[str, Any]:
        self.measured.append(words)
        if len(self.measured) == 2:
            return {"failed": "killed"}
        return {"wall_s": 10.0 + int(words[2]), "samples": 160, "cpu_s": 0.1}


def test_the_load_ends_with_its_benchmark_even_if_that_is_killed() -> None:
    """Processes that hold the output open end it when the last one of them is gone."""
    code = """
import time
from bench.collector import cpu_load

with cpu_load(0.1):
    print("begun", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.kill()
    assert process.communicate(timeout=20)[0] == ""


def test_the_published_experiment_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    contender: Any = FakeContender()
    path = tmp_path / "runs.jsonl"
    plan = list(published.planned_runs([contender], ["small"], [1.0], [0.6, 0.0], 2, 2))
    assert [(run.load, run.seed) for run in plan] == [(0.6, 0), (0.6, 1), (0.0, 0), (0.0, 1)]
    loads: list[float] = []

    def cpu_load(share: float) -> Any:
        loads.append(share)
        return nullcontext()

    first = published.measure_missing(plan, path, cpu_load)
    assert [row.get("failed") for row in first] == [None, "killed", None, None]
    path.write_text(path.read_text() + '{"size": "sma')  # interrupted in the middle of a line
    second = published.measure_missing(plan, path, cpu_load)
    assert contender.measured[4:] == [["small", "1", "1", "2"]]  # the failed one alone
    assert loads == [0.6, 0.0, 0.6]  # once for all runs under it
    assert not any("failed" in row for row in second)
    assert len(published.read_rows(path)) == 4
    assert published.tables(second).count("| small | 10.50+0.50 |") == 2


def test_runs_of_the_published_experiment_can_be_measured_side_by_side(tmp_path: Path) -> None:
    both_run = threading.Barrier(2, timeout=60)

    class WaitsForAnother:
        name = "fake"

        def run(self, task: str, words: list[str], timeout_s: float) -> dict[str, Any]:
            both_run.wait()
            return {"wall_s": 10.0 + int(words[2]), "samples": 160, "cpu_s": 0.1}

    contender: Any = WaitsForAnother()
    plan = list(published.planned_runs([contender], ["big"], [1.0], [0.6], 2, 2))
    rows = published.measure_missing(plan, tmp_path / "runs.jsonl", lambda _: nullcontext(), side=2)
    assert [(row["seed"], row["wall_s"], row["side"]) for row in rows] == [(0, 10, 2), (1, 11, 2)]
    stored = published.read_rows(tmp_path / "runs.jsonl")
    assert sorted(stored, key=lambda row: row["seed"]) == rows


def test_the_published_experiment_is_as_it_was_published() -> None:
    plan = list(published.planned_runs([published.BASE, *collector.CONTENDERS]))
    assert {run.collections for run in plan} == {300}
    assert len(plan) == 3 * 2 * 2 * 3 * (1 + len(collector.CONTENDERS))
