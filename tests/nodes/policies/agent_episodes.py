"""Episodes of several agents as batches, for tests of algorithms that learn across rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Column
from flowrl.nodes.multi_agent import MultiAgent
from flowrl.nodes.observations import NestedColumns

AGENTS, FEATURES, ACTIONS, GAMMA = 3, 4, 3, 0.9
OBS = NestedColumns(
    {
        "agents": Column("float32", (AGENTS, FEATURES)),
        "alive": Column("int8", (AGENTS,), n=2),
        "state": Column("float32", (5,)),
    }
)
DISCRETE = Column("int64", (AGENTS,), low=(0.0,) * AGENTS, high=(ACTIONS - 1.0,) * AGENTS)
REAL = Column("float32", (AGENTS, 2), low=-2.0, high=2.0)


def episode(
    policy: MultiAgent, alive: Any, end: str = "terminated", seed: int = 0, **columns: Any
) -> Batch:
    """An episode of T steps, with agents that act as `alive` (T + 1, N) says."""
    rng = np.random.default_rng(seed)
    acts = np.asarray(alive, np.int8)
    steps = len(acts) - 1
    agents = rng.standard_normal((steps + 1, AGENTS, FEATURES)).astype(np.float32)
    agents[acts == 0] = 0
    state = rng.standard_normal((steps + 1, 5)).astype(np.float32)
    is_last = np.arange(steps) == steps - 1
    ends = {name: is_last & (name == end) for name in ("terminated", "truncated")}
    found = {
        "obs/agents": agents[:-1],
        "obs/alive": acts[:-1],
        "obs/state": state[:-1],
        "next_obs/agents": agents[1:],
        "next_obs/alive": acts[1:],
        "next_obs/state": state[1:],
        "action": rng.integers(ACTIONS, size=(steps, AGENTS)),
        "logp": np.log(rng.uniform(0.2, 0.6, (steps, AGENTS))).astype(np.float32),
        "reward": rng.standard_normal(steps).astype(np.float32),
        "info/rewards": rng.standard_normal((steps, AGENTS)).astype(np.float32),
        "discount": (GAMMA * ~ends["terminated"]).astype(np.float32),
        "last": is_last,
        **ends,
        **columns,
    }
    if policy.own_action.n is None:
        found["action"] = rng.uniform(-2, 2, (steps, AGENTS, 2)).astype(np.float32)
    return Batch({n: np.ascontiguousarray(found[n]) for n in policy.learn_columns()})


ALWAYS = np.ones((7, AGENTS))
# The second agent leaves for good, and the third one is away for two steps.
LIVES = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 0], [1, 0, 0], [1, 0, 1], [1, 0, 1]])
