"""flowrl with its bundled graphs, under the protocol of `bench agents`."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np

import flowrl
from bench.peers.agents_protocol import Act, main

WARM_UP_STEPS = 4000


def train(kind: str, seed: int, env_steps: int) -> tuple[float, int, Act]:
    """Train a team in one thread, without evaluations; return the seconds, the env steps, and the team."""
    graph = flowrl.load({"extends": f"spread_{kind}", "nodes": {"evaluator": None}})
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        result = graph.run(
            placement="serial", seed=seed, steps=env_steps, out=f"{folder}/run", quiet=True
        )
        wall_s = time.perf_counter() - start_s
        return wall_s, result.env_steps, team(flowrl.policy(f"{folder}/run"))


def team(policy: Any) -> Act:
    def act(obs: Any, begins: bool) -> Any:
        if begins:
            policy.reset()
        joint = {"agents": obs, "alive": np.ones(len(obs), np.int8)}
        if "state" in policy.policy.obs.columns:
            joint["state"] = obs.reshape(-1)  # as mpe2 makes it
        return policy.act(joint)

    return act


if __name__ == "__main__":
    main(train, WARM_UP_STEPS)
