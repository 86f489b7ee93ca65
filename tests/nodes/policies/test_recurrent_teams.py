"""Teams whose networks are recurrent learn what each agent has to remember, which those without memory cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from tests.quick_selection import exhaustive_except

GRU = {"type": "gru", "hidden": [], "size": 16}
MLP = {"type": "mlp", "hidden": [16]}
ENV = {"type": "pettingzoo", "id": "tests.nodes.remembered_signs:RememberedSigns"}


def graph(name: str, recurrent: bool) -> dict[str, Any]:
    """The policy on unrolls of two episodes each, or on single steps."""
    network = GRU if recurrent else MLP
    policy: dict[str, Any] = {"type": name, "unroll_steps": 6 if recurrent else None}
    collector: dict[str, Any] = {"type": "sample_collector", "n_sample": 48}
    nodes: dict[str, Any] = {
        "envs": {"type": "env_manager", "count": 8},
        "learner": {"type": "learner"},
    }
    learning = "collector -> learner"
    warmup: list[Any] = []
    if name == "mappo":
        collector["n_sample"] = 192
        rates = {"lr": 0.01, "critic_lr": 0.01, "minibatch_size": 192, "entropy_weight": 0.01}
        policy |= {"actor": network, "critic": MLP, **rates}
    else:
        policy |= {"model": network, "lr": 0.01, "target": {"every_iters": 20}, "epsilon": 0.3}
        size = 700 if recurrent else 4000
        buffer = {"type": "naive_buffer", "size": size, "batch_size": 32, "updates_per_push": 4}
        nodes["buffer"], learning = buffer, "collector -> buffer -> learner"
        warmup = [{"edges": ["collector -> buffer"], "steps": 192}]
    return {
        "env": ENV,
        "policy": policy,
        "nodes": {
            **nodes,
            "collector": collector,
            "evaluator": {"type": "evaluator", "episodes": 64, "stop_value": 1},
        },
        "edges": [
            "collector <-> envs",
            learning,
            "learner -> collector",
            {"learner -> evaluator": {"every": 10 if name == "mappo" else 50}},
        ],
        "warmup": warmup,
        "limits": {"steps": 7000},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", exhaustive_except([("mappo",)], ["vdn", "qmix", "mappo"]))
def test_a_recurrent_team_remembers(name: str, tmp_path: Path) -> None:
    run = flowrl.load(graph(name, recurrent=True)).run(seed=0, out=tmp_path / "run", quiet=True)
    assert run.eval_return == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["qmix", "mappo"])
def test_a_team_without_memory_guesses(name: str, tmp_path: Path) -> None:
    run = flowrl.load(graph(name, recurrent=False)).run(seed=0, out=tmp_path / "run", quiet=True)
    assert run.eval_return is not None
    assert run.eval_return < 0.6
