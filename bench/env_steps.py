"""Env steps a second on CartPole-v1, random actions: a bare loop, the env manager, the collector.

    python -m bench env_steps [REPEATS]

The collector's number includes its random policy and its rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import gymnasium
import numpy as np

from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.envs.base_env_manager import BaseEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.policies.random import Random

ENVS, ROUNDS = 8, 20_000


def bare_loop() -> None:
    """One env, no columns, no seeds, no checks."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    env.reset(seed=0)
    for action in np.random.default_rng(0).integers(2, size=ENVS * ROUNDS):
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def manager() -> None:
    """The columnar hot path."""
    envs = BaseEnvManager(env=Gymnasium(id="CartPole-v1"), count=ENVS)
    envs.reset()
    for actions in np.random.default_rng(0).integers(2, size=(ROUNDS, ENVS)):
        envs.advance(actions)


def collector() -> None:
    """Rows for learning, 2048 in a token."""
    envs = BaseEnvManager(env=Gymnasium(id="CartPole-v1"), count=ENVS)
    policy = Random(obs=envs.spec().obs, action=envs.spec().action)
    node = SampleCollector(envs=envs, policy=policy, n_sample=2048)
    for _ in range(ENVS * ROUNDS // 2048):
        node.collect()


def steps_per_s(work: Callable[[], None], repeats: int) -> float:
    """The best of some repeats."""
    best = 0.0
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        best = max(best, ENVS * ROUNDS / (time.perf_counter() - begin))
    return best


def main(arguments: Sequence[str]) -> dict[str, float]:
    """Measure and print."""
    repeats = int(arguments[0]) if arguments else 3
    found = {f.__name__: steps_per_s(f, repeats) for f in (bare_loop, manager, collector)}
    for name, rate in found.items():
        print(f"  {name:10} {rate:>9,.0f} env steps/s")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
