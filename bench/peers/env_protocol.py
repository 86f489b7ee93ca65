"""How every library's env stepping is measured: the loads, the actions, what the clock counts.

Each library's program is run by that library's own Python, for instance `python -m
bench.peers.sb3_envs subproc SECONDS [LOAD ...]`, and prints one line of JSON: env steps a second for each load.
An env step is what one env does with one action; making envs and the first steps are off the clock.

Imports numpy and gymnasium only: no library that is measured has another's packages.
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

WARM_S = 0.3


class Load(NamedTuple):
    """What is stepped."""

    name: str
    env: str  # "cartpole" or "pixels"
    count: int

    def make(self) -> Any:
        """One env of it."""
        if self.env == "cartpole":
            return gymnasium.make("CartPole-v1", disable_env_checker=True)
        return Pixels()


LOADS = tuple(Load(f"{env}_{n}", env, n) for env in ("cartpole", "pixels") for n in (8, 64))

Step = Callable[[Any], int]  # takes actions for all envs; gives how many env steps came of it
Kinds = Mapping[str, Callable[[Load], "tuple[Step, Callable[[], Any]] | None"]]
# ^ by kind: makes what steps, and what closes it; None where the library has no such env


class Pixels(gymnasium.Env):
    """Images of 84x84x4 bytes, which cost nothing to make: what is measured is how they travel."""

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


def rate(step: Step, count: int, seconds: float) -> float:
    """Env steps a second, with random actions."""
    actions = np.random.default_rng(0).integers(2, size=(4096, count))
    for span_s in (WARM_S, seconds):
        done, turn, begun_s = 0, 0, time.perf_counter()
        until_s = begun_s + span_s
        while time.perf_counter() < until_s:
            done += step(actions[turn % 4096])
            turn += 1
    return done / (time.perf_counter() - begun_s)


def main(kinds: Kinds) -> None:
    """The program of a library: one kind, and the loads that are named (default: all)."""
    kind, seconds, loads = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    found = {}
    for load in (load for load in LOADS if load.name in loads or not loads):
        made = kinds[kind](load)
        if made is not None:
            step, close = made
            found[load.name] = round(rate(step, load.count, seconds))
            close()
    print(json.dumps(found))
