"""Rows for learning from steps as they were taken: the columns that every collector gives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.nodes.observations import ObsColumns, columns_under
from flowrl.nodes.returns import bootstrap_discount, nstep_returns


def step_schema(obs: ObsColumns, action: Column, policy_columns: Schema) -> dict[str, ObsColumns]:
    """What a step is made of, as it was taken."""
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


def row_schema(obs: ObsColumns, action: Column, policy_columns: Schema) -> dict[str, Column]:
    """The columns of a row for learning."""
    step = step_schema(obs, action, policy_columns)
    columns = {name: c for key, of in step.items() for name, c in columns_under(key, of).items()}
    return {**columns, "last": Column("bool"), "discount": Column("float32")}


def transitions(steps: Mapping[str, Array], gamma: float, nstep: int) -> dict[str, Array]:
    """Steps (B, T, …) to rows (B, T - nstep + 1, …).

    A row's `reward` sums up to `nstep` rewards; `next_obs`, `terminated` and `truncated` are those
    at the end of that window, and `discount` is what the value of `next_obs` counts. `last` says
    that the episode ended here.
    """
    done = steps["terminated"] | steps["truncated"]
    if nstep == 1:
        discount = bootstrap_discount(gamma, steps["terminated"])
        return {**steps, "last": done, "discount": discount}
    found = nstep_returns(steps["reward"], done, gamma, nstep)
    whole = found.returns.shape[1]
    envs = np.arange(len(done))[:, None]
    rows = {name: array[:, :whole] for name, array in steps.items()}
    for name in ("next_obs", "terminated", "truncated"):
        rows[name] = steps[name][envs, found.last]
    rows["reward"] = found.returns
    rows["last"] = done[:, :whole]
    rows["discount"] = bootstrap_discount(gamma, rows["terminated"], found.steps)
    return rows
