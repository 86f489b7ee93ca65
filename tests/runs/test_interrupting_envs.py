"""A KeyboardInterrupt of an env is a failure of its node, and Ctrl-C remains an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import flowrl
from flowrl.core.errors import NodeError

ENV = f"{__name__}:InterruptingEnv"


class InterruptingEnv(gymnasium.Env):
    """Raises in its third step what Ctrl-C raises."""

    observation_space = Box(-1, 1, (4,), np.float32)
    action_space = Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise KeyboardInterrupt("this env handles keys")
        return np.zeros(4, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    ("settings", "placement", "node"),
    [
        ({"evaluator.env": {"id": ENV}}, "serial", "evaluator"),
        ({"envs.env": {"id": ENV}}, "serial", "collector"),
        ({"envs.env": {"id": ENV}}, "threads", "collector"),
    ],
)
def test_an_env_that_raises_keyboard_interrupt_fails_its_node(
    settings: dict[str, Any], placement: str, node: str, tmp_path: Path
) -> None:
    graph = flowrl.load("cartpole_dqn", settings)
    with pytest.raises(NodeError, match=f"node '{node}'.*KeyboardInterrupt: this env handles keys"):
        graph.run(train_iters=100, out=tmp_path / "r", placement=placement, quiet=True)
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["status"] == "failed"
