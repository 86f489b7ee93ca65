"""The protocol of `bench agents`: a team of three learns mpe2's simple_spread, and the trained team is then evaluated.

Each library's program runs in that library's own Python, for instance
`python -m bench.peers.benchmarl_agents qmix SEED ENV_STEPS`, and prints one line of JSON. It first trains for a moment
off the clock, so that imports and compilers are not measured. The clock runs from before envs and networks are made
until training ends; the evaluation is off the clock, and the same for all libraries.

This module needs numpy and mpe2 only, because no library's Python has the packages of another.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3

ENV_OPTIONS: Mapping[str, Any] = {"N": 3, "max_cycles": 25, "continuous_actions": False}
EPISODES, EVAL_SEED = 100, 1_000_000
PACKAGES = ("torch", "numpy", "mpe2", "pettingzoo", "benchmarl", "torchrl", "DI-engine", "flowrl")

# From the observations of all agents (N, …), and whether an episode begins with them, to their actions (N,).
Act = Callable[[Any, bool], Any]
# From an algorithm, a seed and a number of env steps to the seconds and env steps of the training, and the team.
Train = Callable[[str, int, int], tuple[float, int, Act]]


def main(train: Train, warm_up_steps: int) -> None:
    """Run a library's program, and print its report."""
    kind, seed, env_steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    train(kind, seed + 1, warm_up_steps)
    wall_s, env_steps, act = train(kind, seed, env_steps)
    report = {
        "wall_s": round(wall_s, 2),
        "env_steps": env_steps,
        "return": round(mean_return(act), 1),
        "versions": installed_versions(),
    }
    print(json.dumps(report))


def mean_return(act: Act) -> float:
    """The mean over episodes of the sum of all agents' rewards."""
    env = simple_spread_v3.parallel_env(**ENV_OPTIONS)
    total = 0.0
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=EVAL_SEED + episode)
        begins = True
        while env.agents:
            actions = act(np.stack([obs[agent] for agent in env.agents]), begins)
            begins = False
            chosen = {agent: int(a) for agent, a in zip(env.agents, actions, strict=True)}
            obs, rewards, *_ = env.step(chosen)
            total += sum(rewards.values())
    return total / EPISODES


def installed_versions() -> dict[str, str]:
    """The versions of the packages that matter, as far as they are installed."""
    installed = {d.name.lower(): d.version for d in importlib.metadata.distributions()}
    return {name: installed[name.lower()] for name in PACKAGES if name.lower() in installed}
