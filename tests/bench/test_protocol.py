"""How a library is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bench.peers import flowrl_solve, protocol
from bench.peers.protocol import EVERY_STEPS, GOAL, Judge
from flowrl.api import load


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def playing(*means: float, time: Time | None = None) -> tuple[Callable[[int], float], list[int]]:
    """A play that gives these means in turn, three seconds each, and the seeds it was given."""
    seeds: list[int] = []

    def play(seed: int) -> float:
        seeds.append(seed)
        if time is not None:
            time.now += 3
        return means[len(seeds) - 1]

    return play, seeds


def test_a_run_is_evaluated_at_the_first_chance_after_a_thousand_steps() -> None:
    judge, (play, seeds) = Judge(60), playing(9, 9)
    for env_steps in (0, 999, 1024, 1500, 2023):
        assert not judge.over(env_steps, play)
    assert len(seeds) == 1
    judge.over(2024, play)
    assert len(seeds) == 2


def test_a_goal_counts_once_other_episodes_confirm_it() -> None:
    judge, (play, seeds) = Judge(60), playing(GOAL, GOAL - 1, 500, GOAL)
    assert not judge.over(EVERY_STEPS, play)
    assert judge.over(2 * EVERY_STEPS, play)
    assert judge.solved
    assert seeds[0] == seeds[2]  # evaluations can be compared
    assert len(set(seeds)) == 3  # and no two confirmations play the same


def test_a_solved_run_is_not_evaluated_again() -> None:
    judge, (play, seeds) = Judge(60), playing(500, 500)
    assert judge.over(EVERY_STEPS, play)
    assert judge.over(9 * EVERY_STEPS, play)
    assert len(seeds) == 2


def test_a_run_that_is_late_ends_with_its_next_evaluation() -> None:
    time = Time()
    judge, (play, _) = Judge(10, time), playing(9, 9, time=time)
    assert not judge.over(EVERY_STEPS, play)
    time.now += 8
    assert not judge.over(EVERY_STEPS + 1, play)
    assert judge.over(2 * EVERY_STEPS, play)
    assert not judge.solved


def test_the_report_tells_evaluation_apart() -> None:
    time = Time()
    judge, (play, _) = Judge(60, time), playing(500, 500, time=time)
    time.now += 2
    judge.over(EVERY_STEPS, play)
    assert judge.report(1024) == {"solved": True, "wall_s": 8, "eval_s": 6, "env_steps": 1024}


def test_a_program_trains_for_a_moment_before_it_is_measured(
    monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, int, float]] = []

    def solve(*given: Any) -> protocol.Report:
        calls.append(given)
        return protocol.report(True, 1.23456, 0.5, 77)

    monkeypatch.setattr("sys.argv", ["sb3_solve", "dqn", "4", "30"])
    protocol.main(solve)
    told = json.loads(capsys.readouterr().out)
    assert calls == [("dqn", 5, 0.0), ("dqn", 4, 30.0)]
    assert told["wall_s"] == 1.235
    assert told["versions"]["flowrl"] == "0.1.0"
    assert set(told["versions"]) <= set(protocol.PACKAGES)


@pytest.mark.parametrize("what", ["dqn", "ppo"])
def test_flowrl_is_evaluated_as_often_as_the_others(what: str) -> None:
    graph = load(f"cartpole_{what}")
    sets = flowrl_solve.protocol(graph.check().require_sound())
    every, per_iter = sets["evaluator.weights.every"], {"dqn": 256 / 8, "ppo": 256}[what]
    assert every * per_iter == pytest.approx(EVERY_STEPS, rel=0.05)
    checked = load(f"cartpole_{what}", sets).check().require_sound()
    assert [paced.every for paced in checked.program.paced] == [every]
    assert checked.graph.nodes["evaluator"].config.stop_value == GOAL


def test_flowrl_is_measured_by_its_own_run() -> None:
    told = flowrl_solve.solve("ppo", 0, 0.0)
    assert told["env_steps"] == 1024
    assert 0 < told["eval_s"] < told["wall_s"]
