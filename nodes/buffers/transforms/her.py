"""Hindsight experience replay (Andrychowicz et al. 2017): relabels drawn rows with goals that were achieved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from flowrl.core.batch import Array, Schema
from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.core.import_paths import import_object
from flowrl.nodes.buffers.transforms.transform import (
    DiscountingConfig,
    SampledRows,
    Transform,
    policy_gamma,
)
from flowrl.nodes.envs.info import PREFIX
from flowrl.nodes.nstep import columns_of_end
from flowrl.nodes.returns import bootstrap_discount

# From achieved and desired goals (n, …), and the columns of `info` (n, …) if it takes `info`, to values (n,).
GoalFunction = Callable[..., Array]


class Her(Transform):
    """Gives k of k + 1 drawn rows, on average, another goal and the reward for it.

    The goal is one that was achieved in the same episode: with `future` after the row's own or a later step, with
    `final` after the last step, and with `episode` after any step. If the policy sums rewards (`nstep`), all rewards of
    the row's window are those for its new goal.

    Drawn sequences and episodes are relabelled as a whole, with one goal for all their rows; `future` counts from their
    last row. With `terminated`, they end where they reach it.
    """

    computes_rewards = True

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
        achieved: str | list[int] = param(
            "achieved_goal",
            "the leaf of observations with the achieved goal; of plain observations, the range of its numbers: "
            "[0, 3] for the first three",
        )
        desired: str | list[int] = param(
            "desired_goal", "the same of the desired goal, such as [3, 6]"
        )

        @model_validator(mode="after")
        def _check_goals(self) -> Any:
            if isinstance(self.achieved, str) != isinstance(self.desired, str):
                what = f"`achieved` is {self.achieved!r} and `desired` is {self.desired!r}"
                raise UnsoundError(what, "give two leaves or two ranges", "desired")
            return self

    def check(self, schema: Schema) -> None:
        c = self.config
        goals = (
            goal_in(name, goal) for name in ("obs", "next_obs") for goal in (c.achieved, c.desired)
        )
        for name in (*(goal.column for goal in goals), "reward", "last"):
            if name not in schema:
                raise UnsoundError(
                    f"her needs the column '{name}'; the columns are {', '.join(schema)}",
                    "use an env with goals (a Dict with `achieved_goal` and `desired_goal`), or set "
                    "`achieved` and `desired` to the names of its leaves, or to the ranges of their numbers in plain "
                    "observations, such as [0, 3] and [3, 6]",
                    "transforms",
                )
        if not isinstance(c.achieved, str):
            _check_ranges(c.achieved, c.desired, schema["obs"].shape)
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
        """Relabel some of the rows with other goals; of a sequence or an episode, all rows with the same goal."""
        c, last = self.config, rows.last_of_groups
        relabelled = rows.rng.random(len(last)) < c.k / (c.k + 1)
        numbers = last[relabelled]
        goal_rows = rows.segments.offset_rows(numbers, self._steps_to_goal(rows, numbers))
        chosen = np.flatnonzero(relabelled[rows.groups])
        goal_rows = goal_rows[(np.cumsum(relabelled) - 1)[rows.groups[chosen]]]
        goals = goal_in("next_obs", c.achieved).stored(rows, goal_rows)
        self._relabel_rewards(rows, chosen, goals)
        for name in ("obs", "next_obs"):
            goal_in(name, c.desired).replace(rows, chosen, goals)

    def _relabel_rewards(self, rows: SampledRows, chosen: Array, goals: Array) -> None:
        """Sum the rewards for the goals (k, …) over the windows of the chosen rows (k,)."""
        c = self.config
        window, exists = rows.windows_of(rows.numbers[chosen])  # (k, n)
        achieved = goal_in("next_obs", c.achieved).stored(rows, window)
        desired = np.broadcast_to(goals[:, None], achieved.shape)
        names = [name for name in rows.names if name.startswith(PREFIX)]
        info = {name.removeprefix(PREFIX): rows.stored(name, window) for name in names}
        reward = _call(c.reward, achieved, desired, info)
        if c.terminated is not None:
            terminated = _call(c.terminated, achieved, desired, info).astype(bool)
            rows.ends[chosen] = terminated[:, 0]
            steps = _rows_until(terminated, exists)
            self._end_windows(rows, chosen, window, terminated, steps, steps < exists.sum(1))
            exists = np.arange(window.shape[1]) < steps[:, None]
        total = np.zeros(len(chosen))
        for j in range(window.shape[1]):
            total += rows.gamma**j * exists[:, j] * reward[:, j]
        rows["reward"] = _replaced(rows["reward"], chosen, total)

    def _steps_to_goal(self, rows: SampledRows, numbers: Array) -> Array:
        """Draw how many rows later (negative: earlier) the new goal of each row was achieved."""
        after = rows.segments.count_after(numbers)
        if self.config.strategy == "final":
            return after
        if self.config.strategy == "future":
            return rows.rng.integers(after + 1)
        before = rows.segments.count_before(numbers)
        return rows.rng.integers(-before, after + 1)

    def _end_windows(
        self,
        rows: SampledRows,
        chosen: Array,
        window: Array,
        terminated: Array,
        steps: Array,
        shortened: Array,
    ) -> None:
        """Set what belongs to the ends of the windows: flags of termination, and more where they are shortened."""
        k = np.arange(len(chosen))
        end, flags = window[k, steps - 1], terminated[k, steps - 1]
        for name in columns_of_end(rows.names):
            if shortened.any():
                earlier = rows.stored(name, end[shortened])
                rows[name] = _replaced(rows[name], chosen[shortened], earlier)
        rows["terminated"] = _replaced(rows["terminated"], chosen, flags)
        discount = bootstrap_discount(policy_gamma("her", self.config.policy), flags, steps)
        rows["discount"] = _replaced(rows["discount"], chosen, discount)


@dataclass(frozen=True)
class GoalPlace:
    """Where goals are in rows: a column, or a range of its numbers."""

    column: str
    numbers: slice | None

    def stored(self, rows: SampledRows, numbers: Array) -> Array:
        """The goals of any rows that are held."""
        found = rows.stored(self.column, numbers)
        return found if self.numbers is None else found[..., self.numbers]

    def replace(self, rows: SampledRows, chosen: Array, goals: Array) -> None:
        """Give the chosen rows these goals."""
        if self.numbers is None:
            rows[self.column] = _replaced(rows[self.column], chosen, goals)
            return
        values = rows[self.column][chosen]
        values[:, self.numbers] = goals
        rows[self.column] = _replaced(rows[self.column], chosen, values)


def goal_in(name: str, goal: str | list[int]) -> GoalPlace:
    """Where a goal is in the observations `name`: their leaf, or their numbers in a range."""
    return (
        GoalPlace(f"{name}/{goal}", None)
        if isinstance(goal, str)
        else GoalPlace(name, slice(*goal))
    )


def _check_ranges(achieved: Any, desired: Any, shape: tuple[int, ...]) -> None:
    """Refuse ranges that are not two goals of one size in observations of this shape."""
    size = shape[0] if len(shape) == 1 else 0
    fit = all(len(goal) == 2 and 0 <= goal[0] < goal[1] <= size for goal in (achieved, desired))
    if not fit or achieved[1] - achieved[0] != desired[1] - desired[0]:
        raise UnsoundError(
            f"her: `achieved: {list(achieved)}` and `desired: {list(desired)}` are not two ranges of one size in "
            f"observations of the shape {list(shape)}",
            "give the first number and the one after the last, counted from 0",
            "transforms",
        )


def _replaced(column: Array, rows: Array, values: Array) -> Array:
    """Copy a column, with other values in some rows."""
    copy = column.copy()
    copy[rows] = values
    return copy


def _rows_until(terminated: Array, exists: Array) -> Array:
    """Count the rows (k,) of windows (k, n) up to the first that terminates; all that exist if none does."""
    first = np.where(terminated.any(1), terminated.argmax(1) + 1, terminated.shape[1])
    return np.minimum(first, exists.sum(1))


def _takes_info(function: GoalFunction) -> bool:
    try:
        return "info" in signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False


def _call(path: str, achieved: Array, desired: Array, info: Mapping[str, Array]) -> Array:
    """Call a user's function with the goals (k, n, …) of all rows, and return one value for each (k, n)."""
    function, shape = _import_function(path), achieved.shape[:2]

    def flat(column: Array) -> Array:
        return column.reshape(-1, *column.shape[2:])

    named = {"info": {k: flat(v) for k, v in info.items()}} if _takes_info(function) else {}
    values = np.asarray(function(flat(achieved), flat(desired), **named))
    if values.shape != (shape[0] * shape[1],):
        raise ValueError(
            f"her: {path} returned the shape {values.shape} for {shape[0] * shape[1]} goals; "
            "return one value for each goal"
        )
    return values.reshape(shape)


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
