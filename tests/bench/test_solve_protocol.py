"""The protocol of `bench solve` and `bench learn`: when a run is evaluated, when it ends, and what its report says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bench.peers import flowrl_solve, solve_protocol
from bench.peers.solve_protocol import TASKS, RunMonitor, task_of
from flowrl.api import load
from tests.manual_clock import ManualClock

TASK = TASKS["cartpole"]
GOAL, EVAL_EVERY_STEPS = 475, 1000  # of this task


def scripted_evaluation(
    *means: float, clock: ManualClock | None = None
) -> tuple[Callable[[int], float], list[int]]:
    """A function that returns these means in turn, in three seconds each, and the seeds of its calls."""
    seeds: list[int] = []

    def evaluate(seed: int) -> float:
        seeds.append(seed)
        if clock is not None:
            clock.now_s += 3
        return means[len(seeds) - 1]

    return evaluate, seeds


def test_a_run_is_evaluated_at_the_first_update_after_a_thousand_steps() -> None:
    monitor, (evaluate, seeds) = RunMonitor(TASK, 60), scripted_evaluation(9, 9)
    for env_steps in (0, 999, 1024, 1500, 2023):
        assert not monitor.is_over(env_steps, evaluate)
    assert len(seeds) == 1
    monitor.is_over(2024, evaluate)
    assert len(seeds) == 2


def test_a_run_is_solved_once_other_episodes_confirm_the_goal() -> None:
    monitor, (evaluate, seeds) = (
        RunMonitor(TASK, 60),
        scripted_evaluation(GOAL, GOAL - 1, 500, GOAL),
    )
    assert not monitor.is_over(EVAL_EVERY_STEPS, evaluate)
    assert monitor.is_over(2 * EVAL_EVERY_STEPS, evaluate)
    assert monitor.solved
    assert seeds[0] == seeds[2]  # so that evaluations are comparable
    assert len(set(seeds)) == 3  # each confirmation plays other episodes


def test_a_solved_run_is_not_evaluated_again() -> None:
    monitor, (evaluate, seeds) = RunMonitor(TASK, 60), scripted_evaluation(500, 500)
    assert monitor.is_over(EVAL_EVERY_STEPS, evaluate)
    assert monitor.is_over(9 * EVAL_EVERY_STEPS, evaluate)
    assert len(seeds) == 2


def test_a_run_beyond_its_time_limit_ends_with_the_next_evaluation() -> None:
    clock = ManualClock()
    monitor, (evaluate, _) = RunMonitor(TASK, 10, clock), scripted_evaluation(9, 9, clock=clock)
    assert not monitor.is_over(EVAL_EVERY_STEPS, evaluate)
    clock.now_s += 8
    assert not monitor.is_over(EVAL_EVERY_STEPS + 1, evaluate)
    assert monitor.is_over(2 * EVAL_EVERY_STEPS, evaluate)
    assert not monitor.solved


def test_the_report_says_how_long_evaluation_took() -> None:
    clock = ManualClock()
    monitor, (evaluate, _) = RunMonitor(TASK, 60, clock), scripted_evaluation(500, 500, clock=clock)
    clock.now_s += 2
    monitor.is_over(EVAL_EVERY_STEPS, evaluate)
    times = {"solved": True, "wall_s": 8, "eval_s": 6, "env_steps": 1024}
    assert monitor.report(1024) == {**times, "curve": [(1000, 500)]}


def test_a_run_without_a_goal_is_evaluated_until_its_steps_are_done() -> None:
    monitor, (evaluate, seeds) = RunMonitor(TASKS["hopper"], 60), scripted_evaluation(900, 9000)
    assert not monitor.is_over(10_000, evaluate)
    assert not monitor.is_over(20_000, evaluate)
    assert len(seeds) == 2
    report = monitor.report(20_000)
    assert (report["solved"], report["curve"]) == (False, [(10_000, 900), (20_000, 9000)])


def test_a_program_trains_briefly_before_the_measured_run(
    monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, int, float]] = []

    def solve(*arguments: Any) -> solve_protocol.Report:
        calls.append(arguments)
        return solve_protocol.make_report(True, 1.23456, 0.5, 77, [])

    monkeypatch.setattr("sys.argv", ["sb3_solve", "cartpole_dqn", "4", "30"])
    solve_protocol.main(solve)
    report = json.loads(capsys.readouterr().out)
    assert calls == [("cartpole_dqn", 5, 0.0), ("cartpole_dqn", 4, 30.0)]
    assert report["wall_s"] == 1.235
    assert report["versions"]["flowrl"] == "0.1.0"
    assert set(report["versions"]) <= set(solve_protocol.PACKAGES)


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_flowrl_is_evaluated_as_often_as_the_peers(algorithm: str) -> None:
    graph = load(f"cartpole_{algorithm}")
    values = flowrl_solve.protocol_values(graph.check().require_sound(), TASK)
    every, per_iter = values["evaluator.weights.every"], {"dqn": 256 / 8, "ppo": 256}[algorithm]
    assert every * per_iter == pytest.approx(EVAL_EVERY_STEPS, rel=0.05)
    checked = load(f"cartpole_{algorithm}", values).check().require_sound()
    assert [paced.every for paced in checked.program.paced] == [every]
    assert checked.graph.nodes["evaluator"].config.stop_value == GOAL


def test_flowrl_reports_the_times_of_its_own_run() -> None:
    report = flowrl_solve.solve("cartpole_ppo", 0, 0.0)
    assert report["env_steps"] == 1024
    assert 0 < report["eval_s"] < report["wall_s"]
    assert [env_steps for env_steps, _ in report["curve"]] == [1024]


def test_a_task_is_named_by_the_env_in_what_is_solved() -> None:
    assert task_of("lunarlander_dqn").env == "LunarLander-v3"
