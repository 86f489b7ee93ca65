"""n-step rewards: every row has one reward, until a buffer or a learner sums those of the `nstep` rows from it on.

The row's `next_obs`, `terminated` and `truncated` are then those at the end of this window, and `discount` is the
factor of the value of `next_obs`. A window ends early where the episode ends, or where the next row of its env is
missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import PartSpec, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes.origin import (
    COLLECTOR_COLUMN,
    ENV_COLUMN,
    LINK_COLUMNS,
    ORIGIN_SCHEMA,
    STEP_COLUMN,
    WEIGHTS_COLUMN,
)
from flowrl.nodes.policy import Policy, gamma_of
from flowrl.nodes.returns import bootstrap_discount, nstep_returns

READ_COLUMNS = ("reward", "terminated", "truncated", "last")


@dataclass(frozen=True, slots=True)
class NstepRule:
    """How rewards are summed."""

    nstep: int  # at least 2
    gamma: float

    def summed_schema(self, schema: Schema) -> Schema:
        """Return the columns of rows with summed rewards, given those of rows with one reward each."""
        missing = [name for name in READ_COLUMNS if name not in schema]
        if missing:
            what = f"the policy sums {self.nstep} rewards, for which rows need the column '{missing[0]}'"
            raise UnsoundError(what, "connect a collector", "policy")
        reward = replace(schema["reward"], sums=self.nstep)
        discount = Column("float32", gamma=self.gamma)
        kept = {name: schema[name] for name in without_links(schema)}
        return {**kept, "reward": reward, "discount": discount}

    def most_waiting(self, schema: Schema) -> int:
        """Return how many of the newest rows may wait for the end of their window, as far as it is known."""
        envs = schema[ENV_COLUMN].n or 1 if ENV_COLUMN in schema else 0
        return (self.nstep - 1) * envs

    def discount(self, terminated: Array, steps: Array) -> Array:
        return bootstrap_discount(self.gamma, terminated, steps)


def nstep_rule(policy: PartSpec | Policy | None, schema: Schema | None) -> NstepRule | None:
    """Return how a node sums the rewards of these rows for a policy; None if it leaves them as they are.

    That is so without a policy, for a policy that learns from single rewards, and for rows whose rewards are summed
    already. Rows of an unknown schema, of nodes that are used without the engine, have single rewards.
    """
    if policy is None:
        return None
    require_gamma(policy, schema or {})
    nstep, found = nstep_of(policy), rewards_summed(schema or {})
    if found == nstep:
        return None
    if found > 1:
        what = f"the rows sum {found} rewards each, but the policy learns from rows of {nstep}"
        hint = f"give the policy `nstep: {found}`, or the node that sums them this policy"
        raise UnsoundError(what, hint, "policy")
    return NstepRule(nstep, float(getattr(_settings(policy), "gamma", 1.0)))


def require_gamma(policy: PartSpec | Policy, schema: Schema, key: str = "policy") -> None:
    """Refuse rows whose column `discount` was computed with another gamma than the policy's, which `key` gives."""
    gamma = gamma_of(policy)
    found = schema["discount"].gamma if "discount" in schema else None
    if gamma is not None and found is not None and gamma != found:
        what = f"the rows are discounted with `gamma: {found:g}`, and the policy that takes them has {gamma:g}"
        hint = "give one gamma to all, as in the section `policy`"
        raise UnsoundError(what, hint, f"{key}.gamma")


def nstep_of(policy: PartSpec | Policy) -> int:
    """Return how many rewards are summed in each row that a policy learns from."""
    return int(getattr(_settings(policy), "nstep", 1))


def _settings(policy: PartSpec | Policy) -> Any:
    return policy.config if isinstance(policy, PartSpec) else policy


def nstep_policy() -> Any:
    """Declare the parameter of a node that sums rewards."""
    about = "the policy that learns, for the rewards that it sums (`nstep`) and their discount"
    return part("policy", about, shared="policy", default=None, reads=("nstep", "gamma"))


def rewards_summed(schema: Schema) -> int:
    """Return how many rewards each row's `reward` sums."""
    return (schema["reward"].sums or 1) if "reward" in schema else 1


def require_single_rewards(schema: Schema, who: str) -> None:
    """Refuse rows with summed rewards, for a node that changes the reward of each step."""
    if (found := rewards_summed(schema)) > 1:
        what = f"{who} changes the reward of each step, but these rows sum {found} rewards each"
        raise UnsoundError(what, "put it before the buffer, which sums them", "data")


def without_links(names: Iterable[str]) -> list[str]:
    """The columns that rows with summed rewards keep.

    Without the version of the weights, origin columns are there only to find the rows of a window.
    """
    found = list(names)
    return found if WEIGHTS_COLUMN in found else [n for n in found if n not in LINK_COLUMNS]


def link_schema(schema: Schema, policy: PartSpec | Policy | None) -> Schema:
    """Return the columns of a dataset's rows as collectors give them: with links if the policy sums rewards."""
    if policy is None or WEIGHTS_COLUMN in schema or "last" not in schema:
        return schema
    kept = {name: schema[name] for name in without_links(schema)}
    if nstep_of(policy) == 1:
        return kept
    return kept | {name: schema.get(name, ORIGIN_SCHEMA[name]) for name in LINK_COLUMNS}


def with_links(rows: Batch, names: Collection[str]) -> Batch:
    """Return these columns of rows in the order of time. Links that they lack are those of one env's steps."""
    if all(name in rows for name in names):
        return rows.only(names)
    last = rows["last"]
    # A step is missing after each end of a segment, so that the next row does not follow.
    step = np.arange(len(last)) + last.cumsum() - last
    links = {
        COLLECTOR_COLUMN: np.full(len(last), -1, np.int32),
        ENV_COLUMN: np.zeros(len(last), np.int32),
        STEP_COLUMN: step.astype(np.int64),
    }
    return Batch({name: rows[name] if name in rows else links[name] for name in names})


def columns_of_end(names: Iterable[str]) -> list[str]:
    """The columns that a row with summed rewards has from the end of its window."""
    return [n for n in names if n.split("/")[0] == "next_obs" or n in ("terminated", "truncated")]


class RowOrder(NamedTuple):
    """The order of the rows of a table by env, and in each env by time. All arrays are (N,)."""

    rows: Array  # the rows in this order
    cuts: Array  # whether the next row in this order is not the next step of the same episode
    newest: Array  # whether a later table may continue with the next step


def row_order(columns: Mapping[str, Array]) -> RowOrder:
    """Order rows by their origin columns; without those, they are in order already, and nothing continues them."""
    if ENV_COLUMN not in columns:
        cuts = columns["last"].copy()
        cuts[-1:] = True
        return RowOrder(np.arange(len(cuts)), cuts, np.zeros(len(cuts), bool))
    env = columns[COLLECTOR_COLUMN].astype(np.int64) << 32 | columns[ENV_COLUMN]
    rows = env.argsort(kind="stable")
    env, step = env[rows], columns[STEP_COLUMN][rows]
    newest, cuts = np.ones(len(rows), bool), np.ones(len(rows), bool)
    newest[:-1] = env[1:] != env[:-1]
    done = (columns["terminated"] | columns["truncated"])[rows]
    cuts[:-1] = newest[:-1] | (step[1:] != step[:-1] + 1) | done[:-1]
    return RowOrder(rows, cuts, newest & ~done)


def with_summed_rewards(rows: Batch, rule: NstepRule) -> Batch:
    """Sum the rewards of a whole table, beyond which no window reaches. The rows keep their order."""
    if not len(rows):
        return rows.only(without_links(rows))
    order = row_order(rows.columns)
    windows = nstep_returns(rows["reward"][order.rows], order.cuts, rule.gamma, rule.nstep)
    reward, steps, end = (np.empty(len(rows), a.dtype) for a in windows)
    reward[order.rows], steps[order.rows], end[order.rows] = (
        windows.returns,
        windows.steps,
        order.rows[windows.last],
    )
    columns = {name: rows[name] for name in without_links(rows)}
    columns |= {name: rows[name][end] for name in columns_of_end(rows)}
    columns["reward"] = reward
    columns["discount"] = rule.discount(columns["terminated"], steps)
    return Batch(columns)
