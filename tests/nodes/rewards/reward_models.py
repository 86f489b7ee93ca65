"""Reward models of the catalogue on random rows."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings
from flowrl.core.state import State
from flowrl.nodes.catalogue import types_in_folder
from flowrl.nodes.imitation import ExpertRewardModel
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.observations import NestedColumns, ObsColumns, columns_under
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.reward_model import LearnedRewardModel, RewardModel
from flowrl.nodes.rewards.airl import Airl

OBS = Column("float32", (3,))
NESTED = NestedColumns({"position": Column("float32", (2,)), "colour": Column("int64", n=3)})
IMAGE = Column("uint8", (36, 36, 3))
DISCRETE = Column("int64", n=4)
SEVERAL = Column("int64", (2,), low=0, high=(2, 3))
REAL = Column("float32", (2,), low=(-2.0, -1.0), high=(2.0, 3.0))
ROWS = 40


def reward_models() -> Iterator[tuple[str, type[RewardModel]]]:
    for name, path in types_in_folder("rewards").items():
        module, _, cls = path.partition(":")
        yield name, getattr(importlib.import_module(module), cls)


REWARD_MODELS = dict(reward_models())
LEARNED = [n for n, cls in REWARD_MODELS.items() if issubclass(cls, LearnedRewardModel)]
IMITATING = [n for n, cls in REWARD_MODELS.items() if issubclass(cls, ExpertRewardModel)]
POLICY = PartSpec("ppo", Ppo, Ppo.Config())
SETTINGS: dict[str, dict[str, Any]] = {
    "airl": {"policy": POLICY},
    "shaping": {"function": "tests.nodes.rewards.reward_models:first_number"},
}


def first_number(s: Any) -> Array:
    """A bonus of the user's."""
    return s.reward * 0 + 0.25


def schema_of(obs: ObsColumns = OBS, action: Column = DISCRETE, steps: int | None = None) -> Schema:
    """The columns of rows that a collector gives; with `steps`, of unrolls."""
    columns = {
        **columns_under("obs", obs),
        "action": action,
        "reward": Column("float32"),
        **columns_under("next_obs", obs),
        "discount": Column("float32"),
        **{name: Column("bool") for name in ("terminated", "truncated", "last")},
        "logp": Column("float32"),
    }
    if steps is None:
        return columns
    return {n: Column(c.dtype, (steps, *c.shape), c.n, c.low, c.high) for n, c in columns.items()}


def make(
    name: str,
    schema: Schema | None = None,
    seed: int = 0,
    default_models: bool = False,
    **params: Any,
) -> Any:
    """A reward model for rows with these columns, with small models unless it is to have its own."""
    cls, known = REWARD_MODELS[name], schema or schema_of()
    fields = cls.Config.model_fields.items()
    models = [n for n, i in fields if (i.json_schema_extra or {}).get("part") == "model"]  # type: ignore[union-attr]
    small = {} if default_models else {n: Mlp(hidden=[16]) for n in models}
    given = {**small, **SETTINGS.get(name, {}), **params}
    inputs = {"data": known, "expert": known} if name in IMITATING else {"data": known}
    context = Context(name, seed=seed, inputs=inputs)
    return cls(config=cls.Config(**given), context=context)


def facts(name: str, schema: Schema, expert: Schema | None = None, **params: Any) -> Any:
    """What a reward model says of itself."""
    cls = REWARD_MODELS[name]
    inputs: dict[str, Any] = {"data": schema}
    if name in IMITATING:
        inputs["expert"] = schema if expert is None else expert
    config = cls.Config(**{**SETTINGS.get(name, {}), **params})
    return cls.describe(config, Surroundings(inputs, {}, frozenset({"out"})))


def rows(schema: Schema | None = None, seed: int = 0, n: int = ROWS, **columns: Array) -> Batch:
    """Random rows."""
    rng = np.random.default_rng(seed)
    found = {name: _random(c, n, rng) for name, c in (schema or schema_of()).items()}
    found["discount"][:] = 0.9
    found["last"][9::10] = True
    return Batch({**found, **columns})


def fire(node: Any, batch: Batch, expert: Batch | None = None) -> Batch:
    """Fire a reward model, with the expert's rows if it has that input."""
    inputs: list[Any] = [batch]
    if isinstance(node, ExpertRewardModel):
        inputs.append(expert)
    if isinstance(node, Airl):
        inputs.append(State(node.learning.learn_mode(0).weights()))
    found: Batch = node.fire(*inputs)
    return found


def _random(column: Column, n: int, rng: np.random.Generator) -> Array:
    shape, dtype = (n, *column.shape), np.dtype(column.dtype)
    if dtype.kind == "b":
        return np.zeros(shape, bool)
    if column.n is not None:
        return rng.integers(column.n, size=shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 2, size=shape).astype(dtype)
    if column.low is not None:
        low, high = np.asarray(column.low, dtype), np.asarray(column.high, dtype)
        return rng.uniform(low, high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
