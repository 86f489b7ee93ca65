"""Agents that learn to spread, in mpe2's simple_spread with three agents."""

from __future__ import annotations

from pathlib import Path

import pytest

import flowrl

RANDOM, IDLE = (
    -82,
    -75,
)  # the returns of random agents, and of agents that never move, over 100 episodes


@pytest.mark.exhaustive
def test_agents_learn_to_spread(tmp_path: Path) -> None:
    graph = flowrl.load("spread_mappo", {"evaluator.stop_value": None})
    run = graph.run(steps=64_000, out=tmp_path / "run")
    assert run.eval_return is not None
    assert run.eval_return > IDLE + 10 > RANDOM
