"""The loads of `bench training`, and how a library is measured.

python -m bench.peers.LIBRARY_training KIND LOAD SECONDS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

STEPS, EPOCHS = 128, 4  # of each env for a training, and how often each row is learned from
GAME = "ALE/Pong-v5"  # of the load with images


@dataclass(frozen=True, slots=True)
class Load:
    """How much PPO collects and learns at a time."""

    envs: int
    minibatch_size: int
    images: bool = False  # Pong with Atari preprocessing, instead of CartPole

    @property
    def rows(self) -> int:
        return self.envs * STEPS


LOADS = {
    "8x128": Load(8, 256),
    "64x128": Load(64, 2048),
    "images": Load(8, 256, images=True),
}
Train = Callable[[], object]  # collects the rows of a load, and learns from them


def main(makers: Mapping[str, Callable[[Load], Train]]) -> None:
    """Measure what the command line says, and print env steps for each second and each CPU second."""
    kind, name, seconds = sys.argv[1:]
    load = LOADS[name]
    print(json.dumps(measure(makers[kind](load), load.rows, float(seconds))))


def measure(train: Train, rows: int, seconds: float) -> dict[str, float]:
    """Train for so many seconds after the first training, which is not measured."""
    train()
    trainings, begin_s, begin_cpu_s = 0, time.perf_counter(), time.process_time()
    while not trainings or time.perf_counter() < begin_s + seconds:
        train()
        trainings += 1
    steps, wall_s = trainings * rows, time.perf_counter() - begin_s
    return {"per_s": steps / wall_s, "per_cpu_s": steps / (time.process_time() - begin_cpu_s)}
