"""The published experiment (concept document 003): envs and policies that sleep, and for how long.

What is drawn belongs to a seed, an env and its episode, so every library and the simulation
(`bench/peers/limits.py`) sleep alike. An episode has 500 steps, its first reset is not on the clock, and
its first length is cut at random, so that short runs see as many resets as long ones. Every duration
and length is multiplied by a draw from [0.4, 1.6], as the document says.

Imports numpy and the standard library only: it runs in every library's own Python.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

ENVS = 8
SAMPLES = 80  # of a collection, at least
STEPS = 500  # of an episode
ACTIONS = 2


@dataclass(frozen=True)
class Size:
    """An env's observation, and seconds on average."""

    obs: int
    reset_s: float
    step_s: float
    infer_s: float


SIZES = {
    "small": Size(64, 0.1, 0.005, 0.004),
    "middle": Size(300, 0.5, 0.01, 0.008),
    "big": Size(3000, 2.0, 0.1, 0.02),
}


@dataclass(frozen=True)
class Episode:
    """One episode of one env."""

    reset_s: float
    steps_s: Any  # (steps,)


class Draws:
    """All durations of one run."""

    def __init__(self, size: str, resets: float, seed: int) -> None:
        """`resets` multiplies the time of a reset."""
        self.size, self.resets, self.seed = SIZES[size], resets, seed
        self._infer = np.random.default_rng([seed, 10**6])

    def episode(self, env: int, number: int) -> Episode:
        """Episode `number` of an env."""
        rng = np.random.default_rng([self.seed, env, number])
        reset, length, share = rng.uniform(0.4, 1.6), rng.uniform(0.4, 1.6), rng.uniform()
        steps = int(STEPS * length * (share if number == 0 else 1)) or 1
        reset_s = 0.0 if number == 0 else self.size.reset_s * self.resets * reset
        return Episode(reset_s, self.size.step_s * rng.uniform(0.4, 1.6, steps))

    def infer_s(self) -> float:
        """The next call of the policy."""
        return float(self.size.infer_s * self._infer.uniform(0.4, 1.6))


class Sleeper:
    """What an env is in all libraries: a reset and steps that sleep."""

    def __init__(self, size: str, resets: float, seed: int, env: int) -> None:
        self._draws, self._env, self._number = Draws(size, resets, seed), env, -1
        self.obs = np.random.default_rng(env).standard_normal(SIZES[size].obs).astype(np.float32)

    def reset(self, env: int | None = None, number: int | None = None) -> Any:
        """Begins the next episode, or the one that is said."""
        self._number = self._number + 1 if number is None else number
        self._env = self._env if env is None else env
        episode = self._draws.episode(self._env, self._number)
        self._steps_s, self._t = episode.steps_s, 0
        if episode.reset_s:
            time.sleep(episode.reset_s)
        return self.obs

    def step(self) -> bool:
        """One step; whether the episode is over."""
        time.sleep(self._steps_s[self._t])
        self._t += 1
        return self._t == len(self._steps_s)


Collect = Callable[[], int]  # collects SAMPLES at least; how many it gave
Make = Callable[[str, Callable[[int], Sleeper], Callable[[], None], Size, int], Collect]


def main(make: Make) -> None:
    """A library's program: `MODE SIZE RESETS SEED COLLECTS`; prints one line of JSON.

    `make` is given the mode, how to make the sleeper of an env, the policy's sleep, the size and
    the seed.
    """
    mode, size, resets, seed, collects = sys.argv[1:]
    draws = Draws(size, float(resets), int(seed))
    sleeper = functools.partial(Sleeper, size, float(resets), int(seed))
    collect = make(mode, sleeper, lambda: time.sleep(draws.infer_s()), draws.size, int(seed))
    collect()  # what is made at the first call is not on the clock
    begun_s, used_s = time.perf_counter(), _cpu_s()
    samples = sum(collect() for _ in range(int(collects)))
    wall_s = time.perf_counter() - begun_s
    found = {"wall_s": wall_s, "samples": samples, "cpu_s": _cpu_s() - used_s}
    print(json.dumps(found), flush=True)
    os._exit(0)  # workers of some libraries do not go when they are told


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
