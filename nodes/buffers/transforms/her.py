"""Hindsight experience replay (Andrychowicz et al. 2017): drawn rows are given goals that were reached."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Literal

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.config import param
from flowrl.core.node import UnsoundError
from flowrl.nodes.buffers.transforms.transform import Discounting, Drawn, Transform, gamma_of
from flowrl.nodes.returns import bootstrap_discount

Goals = Callable[[Array, Array], Array]  # achieved and desired goals (n, …) to something (n,)


class Her(Transform):
    """Of k + 1 rows that are drawn, k get another goal on the average, and its reward.

    The goal is what was achieved in the same episode: `future`, after one of the steps from the
    row's own on; `final`, after the last one; `episode`, after any.
    """

    sums_rewards = True

    class Config(Discounting):
        reward: str = param(
            ..., "`package.module:function` of achieved and desired goals (n, …): rewards (n,)"
        )
        strategy: Literal["future", "final", "episode"] = param("future", "which step's goal")
        k: float = param(4.0, "relabelled rows for each that keeps its goal", gt=0)
        terminated: str | None = param(
            None, "the same kind of function: which rows terminate; default: as they were"
        )
        achieved: str = param("achieved_goal", "the part of an observation: what was reached")
        desired: str = param("desired_goal", "and what was to be reached")

    def check(self, schema: Schema) -> None:
        """The columns of goals, and functions that can be found."""
        c = self.config
        for name in (*self._goals(), "reward", "last"):
            if name not in schema:
                raise UnsoundError(
                    f"her needs the column '{name}'; there are {', '.join(schema)}",
                    "take an env with goals (a Dict with `achieved_goal` and `desired_goal`), or "
                    "say what they are called: `achieved`, `desired`",
                    "transforms",
                )
        _function(c.reward)
        if c.terminated is not None:
            _function(c.terminated)
            gamma_of("her with `terminated`", c.policy)

    def apply(self, drawn: Drawn) -> None:
        """Other goals for some of the rows."""
        c, (now, then, achieved, _) = self.config, self._goals()
        chosen = np.flatnonzero(drawn.rng.random(len(drawn.numbers)) < c.k / (c.k + 1))
        rows = drawn.numbers[chosen]
        goals = drawn.stored(achieved, drawn.runs.away(rows, self._steps_to_goal(drawn, rows)))
        reached = drawn[achieved][chosen]
        for name in (now, then):
            drawn[name] = _with(drawn[name], chosen, goals)
        drawn["reward"] = _with(drawn["reward"], chosen, _of_rows(c.reward, reached, goals))
        if c.terminated is not None:
            self._end(drawn, chosen, _of_rows(c.terminated, reached, goals))

    def _steps_to_goal(self, drawn: Drawn, rows: Array) -> Array:
        """How many rows later (or before) the goal was achieved."""
        ahead = drawn.runs.ahead(rows)
        if self.config.strategy == "final":
            return ahead
        if self.config.strategy == "future":
            return drawn.rng.integers(ahead + 1)
        behind = drawn.runs.behind(rows)
        return drawn.rng.integers(-behind, ahead + 1)

    def _end(self, drawn: Drawn, chosen: Array, terminated: Array) -> None:
        flags = _with(drawn["terminated"], chosen, terminated)
        gamma = gamma_of("her", self.config.policy)
        discount = bootstrap_discount(gamma, flags[chosen])
        drawn["terminated"] = flags
        drawn["discount"] = _with(drawn["discount"], chosen, discount)

    def _goals(self) -> tuple[str, str, str, str]:
        """The columns of goals: desired now and then, achieved then and now."""
        desired, achieved = self.config.desired, self.config.achieved
        return (
            f"obs/{desired}",
            f"next_obs/{desired}",
            f"next_obs/{achieved}",
            f"obs/{achieved}",
        )


def _with(column: Array, rows: Array, values: Array) -> Array:
    found = column.copy()
    found[rows] = values
    return found


def _of_rows(path: str, achieved: Array, desired: Array) -> Array:
    """What a user's function says of rows: one value each."""
    found = np.asarray(_function(path)(achieved, desired))
    if found.shape != (len(achieved),):
        raise ValueError(
            f"her: {path} gave {found.shape} for {len(achieved)} goals; give one value for each"
        )
    return found


def _function(path: str) -> Goals:
    module, _, name = path.partition(":")
    try:
        found: Goals = getattr(importlib.import_module(module), name or "?")
    except (ImportError, AttributeError, ValueError) as error:
        raise UnsoundError(
            f"her: there is no function '{path}' ({error})",
            "write `package.module:function`",
            "transforms",
        ) from error
    return found
