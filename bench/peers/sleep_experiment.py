"""The experiment of `bench collector` (concept document 003): envs and policies that only sleep.

Durations depend on a seed, an env and its episode only, so every library and the simulation
(`bench/peers/collect_limits.py`) sleep alike. An episode has 500 steps. An env's first reset is off the
clock, and its first episode is cut at a random step, so that short runs contain as many resets as long
ones. As the document prescribes, every duration and length is multiplied by a draw from [0.4, 1.6].

This module imports numpy and the standard library only, because it runs in every library's own Python.
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
EPISODE_STEPS = 500
ACTIONS = 2


@dataclass(frozen=True)
class Size:
    """The width of an env's observation, and mean durations in seconds."""

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
class EpisodeDurations:
    """The durations of one episode of one env."""

    reset_s: float
    steps_s: Any  # (steps,)


class Durations:
    """All durations of one run."""

    def __init__(self, size: str, reset_factor: float, seed: int) -> None:
        self.size, self.reset_factor, self.seed = SIZES[size], reset_factor, seed
        self._infer_rng = np.random.default_rng([seed, 10**6])

    def episode(self, env: int, number: int) -> EpisodeDurations:
        """The durations of an env's episode with this number."""
        rng = np.random.default_rng([self.seed, env, number])
        reset, length, share = rng.uniform(0.4, 1.6), rng.uniform(0.4, 1.6), rng.uniform()
        steps = int(EPISODE_STEPS * length * (share if number == 0 else 1)) or 1
        reset_s = 0.0 if number == 0 else self.size.reset_s * self.reset_factor * reset
        return EpisodeDurations(reset_s, self.size.step_s * rng.uniform(0.4, 1.6, steps))

    def next_inference_s(self) -> float:
        """The duration of the policy's next call."""
        return float(self.size.infer_s * self._infer_rng.uniform(0.4, 1.6))


class SleepingEnv:
    """An env whose resets and steps sleep, without the interface of any library."""

    def __init__(self, size: str, reset_factor: float, seed: int, env: int) -> None:
        self._durations, self._env = Durations(size, reset_factor, seed), env
        self._episode = -1
        self.obs = np.random.default_rng(env).standard_normal(SIZES[size].obs).astype(np.float32)

    def reset(self, env: int | None = None, episode: int | None = None) -> Any:
        """Begin the next episode, or a chosen episode of an env."""
        self._episode = self._episode + 1 if episode is None else episode
        self._env = self._env if env is None else env
        durations = self._durations.episode(self._env, self._episode)
        self._steps_s, self._t = durations.steps_s, 0
        if durations.reset_s:
            time.sleep(durations.reset_s)
        return self.obs

    def step(self) -> bool:
        """Take one step; return whether the episode is over."""
        time.sleep(self._steps_s[self._t])
        self._t += 1
        return self._t == len(self._steps_s)


MakeEnv = Callable[[int], SleepingEnv]  # takes the index of the env
Infer = Callable[[], None]  # sleeps as long as one call of the policy takes
Collect = Callable[[], int]  # collects at least SAMPLES samples, and returns their number
# Takes the mode, how to make envs, the policy's sleep, the size and the seed.
MakeCollect = Callable[[str, MakeEnv, Infer, Size, int], Collect]


def main(make_collect: MakeCollect) -> None:
    """Run a library's program with `MODE SIZE RESET_FACTOR SEED COLLECTIONS`; print one line of JSON."""
    mode, size, reset_factor, seed, collections = sys.argv[1:]
    durations = Durations(size, float(reset_factor), int(seed))
    make_env = functools.partial(SleepingEnv, size, float(reset_factor), int(seed))

    def infer() -> None:
        time.sleep(durations.next_inference_s())

    collect = make_collect(mode, make_env, infer, durations.size, int(seed))
    collect()  # off the clock, because it also sets up what later collections use
    start_s, start_cpu_s = time.perf_counter(), _cpu_time_s()
    samples = sum(collect() for _ in range(int(collections)))
    wall_s = time.perf_counter() - start_s
    result = {"wall_s": wall_s, "samples": samples, "cpu_s": _cpu_time_s() - start_cpu_s}
    print(json.dumps(result), flush=True)
    os._exit(0)  # the workers of some libraries do not exit when asked to


def _cpu_time_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
