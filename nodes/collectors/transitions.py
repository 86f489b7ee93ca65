"""The columns of rows for learning."""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.core.batch import Array, Column, Schema
from flowrl.nodes.observations import ObsColumns, columns_under
from flowrl.nodes.returns import bootstrap_discount


def step_schema(obs: ObsColumns, action: Column, policy_columns: Schema) -> dict[str, ObsColumns]:
    """The columns of one step, from which rows are made."""
    flag = Column("bool")
    return {
        "obs": obs,
        "action": action,
        "reward": Column("float32"),
        "next_obs": obs,
        "terminated": flag,
        "truncated": flag,
        **{name: column for name, column in policy_columns.items() if name != "action"},
    }


def row_schema(
    obs: ObsColumns, action: Column, policy_columns: Schema, gamma: float | None = None
) -> dict[str, Column]:
    """The columns of a row for learning, which is discounted by `gamma`."""
    step = step_schema(obs, action, policy_columns)
    columns = {name: c for key, of in step.items() for name, c in columns_under(key, of).items()}
    return {**columns, "last": Column("bool"), "discount": Column("float32", gamma=gamma)}


def transitions(steps: Mapping[str, Array], gamma: float) -> dict[str, Array]:
    """Turn steps into rows: `last` is true where the episode ends, and `discount` is the factor of the next value."""
    done = steps["terminated"] | steps["truncated"]
    return {**steps, "last": done, "discount": bootstrap_discount(gamma, steps["terminated"])}
