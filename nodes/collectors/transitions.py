"""The columns of rows for learning, and n-step transitions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.nodes.observations import ObsColumns, columns_under
from flowrl.nodes.returns import bootstrap_discount, nstep_returns


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


def row_schema(obs: ObsColumns, action: Column, policy_columns: Schema) -> dict[str, Column]:
    """The columns of a row for learning."""
    step = step_schema(obs, action, policy_columns)
    columns = {name: c for key, of in step.items() for name, c in columns_under(key, of).items()}
    return {**columns, "last": Column("bool"), "discount": Column("float32")}


def transitions(steps: Mapping[str, Array], gamma: float, nstep: int) -> dict[str, Array]:
    """Turn steps (B, T, …) into rows (B, T - nstep + 1, …).

    A row's `reward` is the discounted sum of up to `nstep` rewards. Its `next_obs`, `terminated` and
    `truncated` are those at the end of this window, and `discount` is the factor of the value of
    `next_obs`. `last` is true where the episode ends with the row's own step.
    """
    done = steps["terminated"] | steps["truncated"]
    if nstep == 1:
        discount = bootstrap_discount(gamma, steps["terminated"])
        return {**steps, "last": done, "discount": discount}
    windows = nstep_returns(steps["reward"], done, gamma, nstep)
    count = windows.returns.shape[1]
    envs = np.arange(len(done))[:, None]
    rows = {name: array[:, :count] for name, array in steps.items()}
    for name in ("next_obs", "terminated", "truncated"):
        rows[name] = steps[name][envs, windows.last]
    rows["reward"] = windows.returns
    rows["last"] = done[:, :count]
    rows["discount"] = bootstrap_discount(gamma, rows["terminated"], windows.steps)
    return rows
