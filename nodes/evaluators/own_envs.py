"""The env manager that an evaluator makes if none is linked to it."""

from __future__ import annotations

from typing import Any

from flowrl.core.context import Context
from flowrl.core.records import MetricsRecord
from flowrl.nodes.env_managers.env_manager import EnvManager
from flowrl.nodes.env_managers.failures import FailureConfig
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.worker_env_manager import WorkerEnvManager


def make_own_manager(env: Any, count: int, ctx: Context) -> EnvManager:
    """A manager like the graph's first one, so that envs which fail or hang there may do so here, too.

    Pools are an exception: after the first episode, theirs depend on how long the earlier ones were.
    """
    # The manager's records must not be taken for evaluations, so it has a context of its own.
    own = Context(ctx.name, ctx.replica, ctx.seed)
    example = ctx.examples.get("envs")
    if example is None or not isinstance(example.config, FailureConfig):
        return SerialEnvManager(env=env, count=count, context=own)
    changes = {"env": env, "count": count}
    if isinstance(example.config, WorkerEnvManager.Config):
        changes["pre_reset"] = False  # most episodes that are begun ahead would not be played
    manager: EnvManager = example.cls(config=example.config.model_copy(update=changes), context=own)
    return manager


def forward_records(manager: EnvManager, ctx: Context) -> dict[str, float]:
    """Emit what the manager recorded as the evaluator's own records, except its metrics, which are returned."""
    metrics: dict[str, float] = {}
    for record in manager.ctx.take_records():
        if isinstance(record, MetricsRecord):
            metrics.update(record.values)
        else:
            ctx.emit(record)
    return metrics
