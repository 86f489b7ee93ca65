"""The two-step game of QMIX (Rashid et al. 2018): 7 is safe, and 8 needs agents that rely on each other.

What learns from values that are only summed stays at 7. The algorithms that sum and mix values are in
`test_value_decomposition.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from tests.quick_selection import exhaustive_except

MODELS = {"actor": {"type": "mlp", "hidden": [32]}, "critic": {"type": "mlp", "hidden": [32]}}
EXPLORING = {"start": 1.0, "end": 0.0, "env_steps": 30_000}
POLICIES: dict[str, dict[str, Any]] = {
    "mappo": {"entropy_weight": {**EXPLORING, "start": 0.5, "env_steps": 20_000}},
    "coma": {
        "entropy_weight": EXPLORING,
        "epsilon": {"start": 0.5, "end": 0.02, "env_steps": 5000},
    },
}


def two_step_game(name: str) -> dict[str, Any]:
    rates = {"lr": 0.003, "critic_lr": 0.003}
    return {
        "env": {"type": "pettingzoo", "id": "flowrl.nodes.envs.two_step_game:TwoStepGame"},
        "policy": {"type": name, **MODELS, **rates, **POLICIES[name]},
        "nodes": {
            "envs": {"type": "env_manager", "count": 32},
            "collector": {"type": "sample_collector", "n_sample": 256},
            "learner": {"type": "learner"},
            "evaluator": {"type": "evaluator", "episodes": 4},
        },
        "edges": [
            "collector <-> envs",
            "collector -> learner",
            "learner -> collector",
            {"learner -> evaluator": {"every": 20}},
        ],
        "limits": {"steps": 41_000},
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", exhaustive_except([(0,)], range(2)))
@pytest.mark.parametrize("name", POLICIES)
def test_the_best_return_is_reached_and_kept(name: str, seed: int, tmp_path: Path) -> None:
    run = flowrl.load(two_step_game(name)).run(seed=seed, out=tmp_path / "run")
    assert run.eval_return == 8
