"""All kinds of env managers that give the same bits, and a way to open each of them with toy envs."""

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
    "serial": (SerialEnvManager, {}),
    "sync": (SyncSubprocessEnvManager, {}),
    "sync, one env per worker": (SyncSubprocessEnvManager, {"envs_per_worker": 1}),
    "sync, pre-reset": (SyncSubprocessEnvManager, {"pre_reset": True}),
    "thread": (ThreadEnvManager, {}),
    "thread, shared, pre-reset": (ThreadEnvManager, {"envs_per_worker": 3, "pre_reset": True}),
    "async, received by id": (AsyncSubprocessEnvManager, {}),
}
OTHERS = [kind for kind in KINDS if kind != "serial"]


@contextmanager
def open_manager(
    kind: str,
    cls: str = "CountingEnv",
    count: int = 3,
    seed: int = 0,
    env: Gymnasium | None = None,
    **params: Any,
) -> Iterator[Any]:
    """Open a manager of toy envs, and close it at the end. Parameters are the manager's, or else the env's."""
    manager_class, defaults = KINDS[kind]
    fields = manager_class.Config.model_fields
    own_params = {name: params.pop(name) for name in list(params) if name in fields}
    env = env or Gymnasium(id=cls if "-v" in cls or ":" in cls else f"{TOYS}:{cls}", kwargs=params)
    config = manager_class.Config(env=env, count=count, **{**defaults, **own_params})
    manager = manager_class(config=config, seed=seed)
    manager.ctx.name = "envs"  # as in a graph: seeds follow from the name
    manager.seed(manager.ctx.seed_for("episodes"), manager.config.dynamic_seeds)
    try:
        yield manager
    finally:
        manager.close()


def steps_are_equal(one: Steps, other: Steps) -> bool:
    """Whether two steps are equal to the bit."""
    arrays = zip(one[:5], other[:5], strict=True)
    equal = all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in arrays)
    rows = all(
        list(getattr(one, name)) == list(getattr(other, name)) for name in ("failed", "absent")
    )
    return equal and one.episodes == other.episodes and rows
