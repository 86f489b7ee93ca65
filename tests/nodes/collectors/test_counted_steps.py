"""Several collectors of one graph: only the steps of those that count are steps of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from flowrl.runtime.control.cuts import CutPlanner
from tests.sites.run_comparison import compare_placements

GRAPH: dict[str, Any] = {
    "extends": "cartpole_dqn",
    "nodes": {
        "tutor": {"type": "sample_collector", "n_sample": 64, "policy": "random", "counts": False},
        "tutor_envs": {"type": "env_manager", "count": 2},
        "evaluator": None,
    },
    "edges": [
        "tutor <-> tutor_envs",
        "learner -> tutor",
        "collector, tutor -> buffer",
    ],
    "warmup": [{"edges": ["collector, tutor -> buffer"], "steps": 1000}],
}


@pytest.mark.slow
def test_only_the_agents_steps_are_steps_of_the_run(tmp_path: Path) -> None:
    result = compare_placements(GRAPH, tmp_path, "threads", steps=2000)
    assert result["env_steps"] == 2048  # 8 rounds of 256; the tutor's 512 do not count
    counted = compare_placements(
        {
            **GRAPH,
            "nodes": {**GRAPH["nodes"], "tutor": {**GRAPH["nodes"]["tutor"], "counts": True}},
        },
        tmp_path / "counted",
        "threads",
        steps=2000,
    )
    assert counted["env_steps"] == 7 * 320
    assert counted["digest"] != result["digest"]


def test_a_limit_of_env_steps_that_nobody_counts_is_a_warning() -> None:
    graph = {"extends": "cartpole_dqn", "nodes": {"collector": {"counts": False}}, "warmup": None}
    [warning] = check(load_data(graph)).warnings
    assert "no collector's env steps count, so it is never reached" in str(warning)
    assert check(load_data({**graph, "limits": {"train_iters": 10}})).warnings == []


def test_the_cut_after_env_steps_is_known_before_the_run() -> None:
    checked = check(load_data(GRAPH)).require_sound()
    assert CutPlanner(checked, checked.graph.limits).known_steps == (1024, 256)


@pytest.mark.slow
def test_the_summary_says_that_the_warm_up_was_longer_than_the_limit(tmp_path: Path) -> None:
    for steps, lines in {
        1024: (
            "the warm-up took 1,024 env steps, and 1,024 were asked for; so the run ended one round later",
        ),
        1025: (),
    }.items():
        result = compare_placements(GRAPH, tmp_path / f"{steps}", "threads", steps=steps)
        assert (result["env_steps"], tuple(result["warnings"])) == (1280, lines)
