"""Players with memory: they learn in matches what they have to remember, from unrolls and from sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.runs.folder import read_jsonl

ENV = {
    **{"type": "pettingzoo", "id": "tests.nodes.remembered_signs:RememberedSigns"},
    **{"agents": "shared", "kwargs": {"versus": True}},
}
GRU = {"type": "gru", "hidden": [], "size": 16}
MLP = {"type": "mlp", "hidden": [16]}
PPO: dict[str, Any] = {"type": "ppo", "lr": 0.01, "minibatch_size": 192}


def graph(policy: dict[str, Any], n_episode: int, judged: int) -> dict[str, Any]:
    """Self-play, judged at the end in matches against random actions, which are right half of the time."""
    return {
        "env": ENV,
        "policy": policy,
        "nodes": {
            "envs": {"type": "env_manager", "count": 4},
            "collector": {"type": "match_collector", "n_episode": n_episode},
            "learner": {"type": "learner"},
            "table": {"type": "env_manager", "count": 4},
            "judge": {
                **{"type": "match_evaluator", "n_episode": 100, "names": ["chance"]},
                "opponents": [{"type": "random"}],
            },
        },
        "edges": [
            "collector <-> envs",
            "collector -> learner",
            "learner -> collector",
            "judge <-> table",
            {"learner -> judge": {"every": judged}},
        ],
    }


def score(data: dict[str, Any], iters: int, folder: Path) -> float:
    """The mean score against random actions at the end: 3/4 for who is always right, and 1/2 for who guesses."""
    flowrl.load(data).run(train_iters=iters, out=folder, quiet=True)
    [row] = [row for row in read_jsonl(folder / "metrics.jsonl") if row["node"] == "judge"]
    return float(row["chance/score_mean"])


@pytest.mark.slow
def test_ppo_learns_from_unrolls_of_matches_what_to_remember(tmp_path: Path) -> None:
    with_memory = {**PPO, "model": GRU, "unroll_steps": 8}
    assert score(graph(with_memory, 48, 24), 24, tmp_path / "gru") > 0.67
    assert score(graph({**PPO, "model": MLP}, 48, 24), 24, tmp_path / "mlp") < 0.6


@pytest.mark.exhaustive
def test_r2d2_learns_from_sequences_of_matches_what_to_remember(tmp_path: Path) -> None:
    policy = {
        **{"type": "r2d2", "model": GRU, "unroll_steps": 3, "target_steps": 2, "epsilon": 0.3},
        **{"lr": 0.01, "rescale": False, "target": {"every_iters": 20}},
    }
    data = graph(policy, 16, 240)
    data["nodes"]["buffer"] = {
        **{"type": "sequence_buffer", "size": 2000, "unroll_steps": 3, "period_steps": 3},
        **{"memory_columns": ["memory"], "batch_size": 32, "updates_per_push": 4},
    }
    data["edges"][1] = "collector -> buffer -> learner"
    data["edges"].append("learner.priorities -> buffer.priorities")
    data["warmup"] = [{"edges": ["collector -> buffer"], "rounds": 5}]
    assert score(data, 240, tmp_path / "run") > 0.67
