"""The protocol of `bench envs`: the workloads, the actions, and what the clock counts.

Each library's program runs in that library's own Python, for instance
`python -m bench.peers.sb3_envs subproc SECONDS [WORKLOAD ...]`, and prints one line of JSON: the env steps
per second of each workload. One env that takes one action is one env step. Making envs and the first steps
are off the clock.

This module imports numpy and gymnasium only, because no library's Python has the packages of another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

WARM_UP_S = 0.3


class Workload(NamedTuple):
    """A number of envs to step."""

    name: str
    env: str  # "cartpole" or "pixels"
    count: int

    def make_env(self) -> Any:
        if self.env == "cartpole":
            return gymnasium.make("CartPole-v1", disable_env_checker=True)
        return Pixels()


WORKLOADS = tuple(Workload(f"{e}_{n}", e, n) for e in ("cartpole", "pixels") for n in (8, 64))

StepFunction = Callable[[Any], int]  # takes actions for all envs, returns the number of env steps


class SteppedEnvs(NamedTuple):
    """The two functions of a library's envs that the protocol calls."""

    step: StepFunction
    close: Callable[[], Any]


# Makes the envs of a workload; returns None if the library has no such env.
MakeEnvs = Callable[[Workload], SteppedEnvs | None]


class Pixels(gymnasium.Env):
    """Images of 84x84x4 bytes, which take no time to make, so the rate is that of moving them."""

    observation_space = Box(0, 255, (84, 84, 4), np.uint8)
    action_space = Discrete(2)

    def __init__(self) -> None:
        self.frames = np.random.default_rng(0).integers(256, size=(8, 84, 84, 4), dtype=np.uint8)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.t = 0
        return self.frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.t += 1
        return self.frames[self.t % 8], 1.0, self.t == 200, False, {}


def step_rate(step: StepFunction, count: int, seconds: float) -> float:
    """The env steps per second with random actions."""
    actions = np.random.default_rng(0).integers(2, size=(4096, count))
    for duration_s in (WARM_UP_S, seconds):
        steps, calls, start_s = 0, 0, time.perf_counter()
        end_s = start_s + duration_s
        while time.perf_counter() < end_s:
            steps += step(actions[calls % 4096])
            calls += 1
    return steps / (time.perf_counter() - start_s)


def main(kinds: Mapping[str, MakeEnvs]) -> None:
    """Run a library's program: measure one kind under the named workloads (default: all)."""
    kind, seconds, names = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    rates = {}
    for workload in (w for w in WORKLOADS if w.name in names or not names):
        envs = kinds[kind](workload)
        if envs is not None:
            rates[workload.name] = round(step_rate(envs.step, workload.count, seconds))
            envs.close()
    print(json.dumps(rates))
