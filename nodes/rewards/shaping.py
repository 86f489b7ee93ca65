"""Rewards shaped by a function of the user: a bonus for each step, or the gain of a potential (Ng et al. 1999)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import model_validator

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.core.errors import InvalidResultError
from flowrl.core.facts import UnsoundError
from flowrl.core.import_paths import import_object
from flowrl.nodes.reward_model import RewardModel
from flowrl.nodes.reward_steps import StepBatch, StepColumns


class Shaping(RewardModel):
    """Adds the values of a function to the rewards.

    With `potential`, the bonus is discount_t phi(s_tp1) - phi(s_t), which does not change which policy is best.
    """

    reads = ("obs", "action", "reward", "next_obs", "discount")

    class Config(RewardModel.Config):
        function: str | None = param(
            None,
            "`package.module:function`: from steps `s`, with arrays `s.obs`, `s.action`, `s.reward` and `s.next_obs` "
            "(n, …), to bonuses (n,)",
        )
        potential: str | None = param(
            None, "`package.module:function`: from observations (n, …) to their potentials (n,)"
        )

        @model_validator(mode="after")
        def _check_choice(self) -> Any:
            if (self.function is None) == (self.potential is None):
                what = "shaping needs a `function` or a `potential`"
                raise UnsoundError(what, "give one of both", "potential")
            return self

    @classmethod
    def check(cls, config: Any, steps: StepColumns) -> None:
        imported_function(config.function or config.potential)

    def bonus(self, b: StepBatch) -> Array:
        c = self.config
        if c.function is not None:
            return values_of(c.function, len(b.reward), b)
        phi_t = values_of(c.potential, len(b.reward), b.obs)
        phi_tp1 = values_of(c.potential, len(b.reward), b.next_obs)
        return b.discount * phi_tp1 - phi_t


def values_of(path: str, steps: int, argument: Any) -> Array:
    """Call a user's function, which must return one number for each step."""
    found = imported_function(path)(argument)
    values = np.asarray(found, np.float32)
    if values.shape != (steps,):
        returned = "None" if found is None else f"the shape {values.shape}"
        raise InvalidResultError(
            f"shaping: {path} returned {returned} for {steps} steps; return one number for each step"
        )
    return values


def imported_function(path: str) -> Callable[..., Any]:
    """Import the function that a path names."""
    try:
        function = import_object(path)
    except (ImportError, AttributeError, ValueError) as error:
        what = f"the function '{path}' cannot be imported ({error})"
        raise UnsoundError(what, "write `package.module:function`") from error
    if not callable(function):
        raise UnsoundError(f"'{path}' is a {type(function).__name__}", "name a function")
    found: Callable[..., Any] = function
    return found
