"""Every kind of env manager, made alike: one contract, many implementations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flowrl.nodes.env_managers.env_manager import EnvManager
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.subprocess_env_managers import (
    AsyncSubprocessEnvManager,
    SyncSubprocessEnvManager,
)
from flowrl.nodes.env_managers.thread_env_manager import ThreadEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.steps import Steps

TOYS = "tests.nodes.toy_envs"
KINDS: dict[str, tuple[type[EnvManager], dict[str, Any]]] = {
    "base": (SerialEnvManager, {}),
    "sync": (SyncSubprocessEnvManager, {}),
    "sync, one env a worker": (SyncSubprocessEnvManager, {"envs_per_worker": 1}),
    "sync, pre-reset": (SyncSubprocessEnvManager, {"pre_reset": True}),
    "thread": (ThreadEnvManager, {}),
    "thread, shared, pre-reset": (ThreadEnvManager, {"envs_per_worker": 3, "pre_reset": True}),
    "async, asked by id": (AsyncSubprocessEnvManager, {}),
}
OTHERS = [kind for kind in KINDS if kind != "base"]


@contextmanager
def manager(
    kind: str,
    cls: str = "Counting",
    count: int = 3,
    seed: int = 0,
    env: Gymnasium | None = None,
    **params: Any,
) -> Iterator[Any]:
    """A manager of toy envs, closed at the end."""
    made, own = KINDS[kind]
    mine = {name: params.pop(name) for name in list(params) if name in made.Config.model_fields}
    env = env or Gymnasium(id=cls if "-v" in cls or ":" in cls else f"{TOYS}:{cls}", kwargs=params)
    config = made.Config(env=env, count=count, **{**own, **mine})
    node = made(config=config, seed=seed)
    node.ctx.name = "envs"  # as in a graph: seeds follow from the name
    node.seed(node.ctx.seed_for("episodes"), node.config.dynamic_seeds)
    try:
        yield node
    finally:
        node.close()


def same(one: Steps, other: Steps) -> bool:
    """Whether two steps are, to the bit."""
    arrays = zip(one[:5], other[:5], strict=True)
    equal = all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in arrays)
    void = all(list(getattr(one, of)) == list(getattr(other, of)) for of in ("failed", "absent"))
    return equal and one.episodes == other.episodes and void
