"""Synthetic batches for learn modes, and comparisons of their states."""

from typing import Any

import numpy as np
import torch

from flowrl.core.batch import Batch, Column
from flowrl.core.state import Count
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policy import LearnMode, LearnResult, Policy

OBS = Column("float32", (4,))
DISCRETE = Column("int64", n=2)
CONTINUOUS = Column("float32", (2,), low=-1.0, high=1.0)


def rows(n: int = 32, seed: int = 0, gamma: float = 0.9, **columns: Any) -> Batch:
    """Rows with a collector's columns: random numbers with random ends of episodes."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, n)) < 0.1
    last = terminated | truncated
    last[-1] = True
    found = {
        "obs": rng.standard_normal((n, 4)).astype(np.float32),
        "next_obs": rng.standard_normal((n, 4)).astype(np.float32),
        "action": rng.integers(2, size=n),
        "reward": rng.standard_normal(n).astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
        "last": last,
        "discount": (gamma * ~terminated).astype(np.float32),
        "logp": np.full(n, np.log(0.5), np.float32),
    }
    return Batch({**found, **columns})


def poison(seed: int) -> None:
    """Seed the global generators, whose state must not matter."""
    torch.manual_seed(seed)
    np.random.seed(seed)


def trained(policy: Policy, iters: int = 20, poisoned: int = 0) -> LearnMode:
    """A learn mode after `iters` train iterations."""
    poison(poisoned)
    mode = policy.learn_mode(seed=7)
    learn(mode, range(iters))
    return mode


def learn(mode: LearnMode, seeds: range) -> None:
    for seed in seeds:
        learn_from(mode, rows(seed=seed))


def learn_from(mode: Any, batch: Batch, **settings: float) -> LearnResult:
    """Do one train iteration with the command at the start of a run, and with these settings in it."""
    result: LearnResult = mode.forward(batch, {**mode.policy.command(Count()), **settings})
    return result


def tensors(batch: Batch) -> LearnBatch:
    """A batch as `learn` gets it."""
    return LearnBatch(batch, {}, None)


def same_bits(one: Any, other: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return bool(one == other)
