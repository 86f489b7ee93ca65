"""The tasks of `bench offline`, and how a library is measured.

    python -m bench.peers.LIBRARY_offline TASK UPDATES

This module imports the standard library and numpy only, because no library's Python has the packages of another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parents[2] / "graphs"
BEGIN_UPDATES = 5  # which are not measured


@dataclass(frozen=True, slots=True)
class Task:
    """What is learned, from which data."""

    data: str
    hidden: tuple[int, ...]  # the units of the layers of each network
    updates: int  # of a measurement
    env: str = ""  # if the task has one
    batch_size: int = 256


@dataclass(frozen=True, slots=True)
class ImitationRound:
    """What one update of GAIL is: env steps, a training of PPO on them, and steps of the discriminator."""

    envs: int = 8
    env_steps: int = 1024
    epochs: int = 4
    discriminator_steps: int = 4


TASKS = {
    "bc": Task("cartpole_demos.npz", (64, 64), updates=1000),
    "gail": Task("cartpole_demos.npz", (64, 64), updates=10, env="CartPole-v1"),
    "cql": Task("pendulum_ranked.npz", (256, 256), updates=200),
    "iql": Task("pendulum_ranked.npz", (256, 256), updates=500),
    "td3bc": Task("pendulum_ranked.npz", (256, 256), updates=500),
}
GAIL = ImitationRound()
Train = Callable[[int], object]  # does so many updates


def rows_of(task: Task) -> dict[str, Any]:
    """The columns of a task's data."""
    with np.load(DATA / task.data, allow_pickle=False) as file:
        return {name: file[name] for name in file.files if not name.startswith("__")}


def main(makers: Mapping[str, Callable[[Task], Train]]) -> None:
    """Measure what the command line says, and print the seconds of the updates."""
    name, updates = sys.argv[1:]
    print(json.dumps(measure(makers[name](TASKS[name]), int(updates))))


def measure(train: Train, updates: int) -> dict[str, float]:
    """The seconds, and those of the processor, of so many updates after the first ones."""
    train(BEGIN_UPDATES)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    train(updates)
    seconds = time.perf_counter() - begin_s
    return {"seconds": seconds, "cpu_s": time.process_time() - begin_cpu_s}
