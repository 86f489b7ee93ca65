"""The steps that a reward model rates: their columns, and N of them as the model sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from flowrl.core.batch import Column, Schema
from flowrl.core.facts import UnsoundError
from flowrl.nodes.acting import ActionBox
from flowrl.nodes.distributions import action_bounds
from flowrl.nodes.observations import SEPARATOR, ObsColumns, obs_columns_in

REWARD = "reward"


@dataclass(frozen=True)
class StepColumns:
    """The columns of steps. Rows may be unrolls, whose columns have time as a further axis."""

    columns: Schema  # without the axis of time
    owner: str

    @staticmethod
    def of(owner: str, schema: Schema) -> StepColumns:
        """The columns of the steps in rows with these columns; rows whose rewards have an axis are unrolls."""
        dims = len(schema[REWARD].shape) if REWARD in schema else 0
        steps = {n: replace(c, shape=c.shape[dims:], frames=None) for n, c in schema.items()}
        return StepColumns(steps, owner)

    def under(self, name: str) -> Schema:
        """The column `name`, or those of its leaves if it is nested."""
        if name in self.columns:
            return {name: self.columns[name]}
        prefix = name + SEPARATOR
        found = {n: c for n, c in self.columns.items() if n.startswith(prefix)}
        if not found:
            what = f"{self.owner} reads the column '{name}', and the rows have {', '.join(self.columns)}"
            raise UnsoundError(what, "connect a collector, or rows that have the column")
        return found

    @cached_property
    def obs(self) -> ObsColumns:
        """The observations, plain or nested."""
        return self.observations("obs")

    @cached_property
    def next_obs(self) -> ObsColumns:
        return self.observations("next_obs")

    def observations(self, name: str) -> ObsColumns:
        self.under(name)
        found = obs_columns_in(self.columns, name)
        assert found is not None
        return found

    @cached_property
    def action(self) -> Column:
        """The actions as networks see them: real-valued and bounded ones are scaled to (-1, 1)."""
        action = self.under("action")["action"]
        if self.box is not None:
            return Column("float32", (len(self.box.middle),))
        if np.dtype(action.dtype).kind in "iu" and not action.shape and action.n is None:
            what = f"{self.owner} does not know how many actions there are"
            hint = "without the engine, give it `context=Context(name, inputs={'data': columns})`"
            raise UnsoundError(what, hint)
        return action

    @cached_property
    def box(self) -> ActionBox | None:
        """The bounds of real-valued actions, if there are any."""
        action = self.columns.get("action")
        if action is None or np.dtype(action.dtype).kind != "f":
            return None
        is_bounded = all(np.isfinite(bound).all() for bound in action_bounds(action))
        return ActionBox(action) if is_bounded else None


class StepBatch:
    """Columns of N steps, such as `b.obs` (by leaf if nested) and `b.action`; tensors, if the model has networks.

    `b.expert` are steps of the expert, if the model has one.
    """

    def __init__(self, columns: Mapping[str, Any], expert: Any = None) -> None:
        self.expert = expert
        self.__dict__.update(columns)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no column '{name}'; add it to `reads` of the reward model")

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def add(self, **columns: Any) -> None:
        """Add columns, which are read like the others."""
        self.__dict__.update(columns)


def columns_data(columns: Schema) -> dict[str, dict[str, Any]]:
    """Columns as data for a snapshot."""
    fields = ("dtype", "shape", "n", "low", "high")
    return {name: {f: getattr(column, f) for f in fields} for name, column in columns.items()}


def columns_from_data(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Column]:
    """The columns that `columns_data` returned as data."""
    return {name: _column(fields) for name, fields in data.items()}


def _column(fields: Mapping[str, Any]) -> Column:
    low, high = (tuple(v) if isinstance(v := fields[f], list) else v for f in ("low", "high"))
    return Column(fields["dtype"], tuple(fields["shape"]), fields["n"], low, high)
