"""Hindsight experience replay (Andrychowicz et al. 2017): relabels drawn rows with goals that were achieved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Literal

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.config import param
from flowrl.core.import_paths import import_object
from flowrl.core.node import UnsoundError
from flowrl.nodes.buffers.transforms.transform import (
    DiscountingConfig,
    SampledRows,
    Transform,
    policy_gamma,
)
from flowrl.nodes.envs.info import PREFIX
from flowrl.nodes.returns import bootstrap_discount

# From achieved and desired goals (n, …), and the columns of `info` (n, …) if it takes `info`, to values (n,).
GoalFunction = Callable[..., Array]


class Her(Transform):
    """Gives k of k + 1 drawn rows, on average, another goal and the reward for it.

    The goal is one that was achieved in the same episode: with `future` after the row's own or a later step, with
    `final` after the last step, and with `episode` after any step.
    """

    sums_rewards = True

    class Config(DiscountingConfig):
        reward: str = param(
            ...,
            "`package.module:function`: from achieved and desired goals (n, …) to rewards (n,); with a "
            "parameter `info`, it gets the listed entries of `info` by name (n, …)",
        )
        strategy: Literal["future", "final", "episode"] = param(
            "future", "the step whose achieved goal becomes the desired goal"
        )
        k: float = param(4.0, "relabelled rows for each row that keeps its goal", gt=0)
        terminated: str | None = param(
            None,
            "`package.module:function`: as `reward`, to flags (n,) of rows that terminate; default: as stored",
        )
        achieved: str = param("achieved_goal", "the leaf of observations with the achieved goal")
        desired: str = param("desired_goal", "the leaf of observations with the desired goal")

    def check(self, schema: Schema) -> None:
        c = self.config
        for name in (*self._goal_columns(), "reward", "last"):
            if name not in schema:
                raise UnsoundError(
                    f"her needs the column '{name}'; the columns are {', '.join(schema)}",
                    "use an env with goals (a Dict with `achieved_goal` and `desired_goal`), or set "
                    "`achieved` and `desired` to the names of its leaves",
                    "transforms",
                )
        functions = [_import_function(path) for path in (c.reward, c.terminated) if path]
        if any(map(_takes_info, functions)) and not any(n.startswith(PREFIX) for n in schema):
            raise UnsoundError(
                f"her: {c.reward} takes `info`, and the rows have none",
                "list what it needs: `env: {info: {is_success: bool}}`",
                "transforms",
            )
        if c.terminated is not None:
            policy_gamma("her with `terminated`", c.policy)

    def apply(self, rows: SampledRows) -> None:
        """Relabel some of the rows with other goals."""
        c, (desired, next_desired, next_achieved, _) = self.config, self._goal_columns()
        chosen = np.flatnonzero(rows.rng.random(len(rows.numbers)) < c.k / (c.k + 1))
        numbers = rows.numbers[chosen]
        goal_rows = rows.segments.offset_rows(numbers, self._steps_to_goal(rows, numbers))
        goals = rows.stored(next_achieved, goal_rows)
        achieved = rows[next_achieved][chosen]
        for name in (desired, next_desired):
            rows[name] = _replaced(rows[name], chosen, goals)
        names = [name for name in rows.names if name.startswith(PREFIX)]
        info = {name.removeprefix(PREFIX): rows[name][chosen] for name in names}
        rewards = _call(c.reward, achieved, goals, info)
        rows["reward"] = _replaced(rows["reward"], chosen, rewards)
        if c.terminated is not None:
            self._set_terminated(rows, chosen, _call(c.terminated, achieved, goals, info))

    def _steps_to_goal(self, rows: SampledRows, numbers: Array) -> Array:
        """Draw how many rows later (negative: earlier) the new goal of each row was achieved."""
        after = rows.segments.count_after(numbers)
        if self.config.strategy == "final":
            return after
        if self.config.strategy == "future":
            return rows.rng.integers(after + 1)
        before = rows.segments.count_before(numbers)
        return rows.rng.integers(-before, after + 1)

    def _set_terminated(self, rows: SampledRows, chosen: Array, terminated: Array) -> None:
        flags = _replaced(rows["terminated"], chosen, terminated)
        gamma = policy_gamma("her", self.config.policy)
        rows["terminated"] = flags
        discount = bootstrap_discount(gamma, flags[chosen])
        rows["discount"] = _replaced(rows["discount"], chosen, discount)

    def _goal_columns(self) -> tuple[str, str, str, str]:
        """Return the columns of goals: desired, next desired, next achieved, achieved."""
        desired, achieved = self.config.desired, self.config.achieved
        return (
            f"obs/{desired}",
            f"next_obs/{desired}",
            f"next_obs/{achieved}",
            f"obs/{achieved}",
        )


def _replaced(column: Array, rows: Array, values: Array) -> Array:
    """Copy a column, with other values in some rows."""
    copy = column.copy()
    copy[rows] = values
    return copy


def _takes_info(function: GoalFunction) -> bool:
    try:
        return "info" in signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False


def _call(path: str, achieved: Array, desired: Array, info: Mapping[str, Array]) -> Array:
    """Call a user's function, which must return one value for each row."""
    function = _import_function(path)
    named = {"info": info} if _takes_info(function) else {}
    values = np.asarray(function(achieved, desired, **named))
    if values.shape != (len(achieved),):
        raise ValueError(
            f"her: {path} returned the shape {values.shape} for {len(achieved)} goals; "
            "return one value for each goal"
        )
    return values


def _import_function(path: str) -> GoalFunction:
    try:
        function: GoalFunction = import_object(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnsoundError(
            f"her: the function '{path}' cannot be imported ({error})",
            "write `package.module:function`",
            "transforms",
        ) from error
    if not callable(function):
        raise UnsoundError(
            f"her: '{path}' is a {type(function).__name__}", "name a function", "transforms"
        )
    return function
