"""The random policy draws actions uniformly, independent of the observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.distributions import (
    action_bounds,
    choice_counts,
    uniform_allowed_choices,
    uniform_choices,
)
from flowrl.nodes.models.action_mask import has_mask
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.policy import ActMode, LearnMode, Policy, act_by_id


class Random(Policy):
    """Acts without weights, and cannot learn."""

    acts_without_weights = True

    def learn_columns(self) -> Schema:
        self._refuse_to_learn()

    def learn_mode(self, seed: int) -> LearnMode:
        self._refuse_to_learn()

    def collect_mode(self, seed: int) -> ActMode:
        return self.eval_mode(seed)

    def eval_mode(self, seed: int) -> ActMode:
        counts = None if np.dtype(self.action.dtype).kind == "f" else choice_counts(self.action)
        if counts is not None and has_mask(self.obs, int(counts.sum())):
            return RandomAllowedMode(self.action, seed)
        return RandomMode(self.action, seed)

    def _refuse_to_learn(self) -> NoReturn:
        raise UnsoundError("the random policy does not learn", "give the learner another", "policy")


class RandomMode:
    """Draws actions uniformly; unbounded ones from the standard normal distribution."""

    def __init__(self, action: Column, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._draw = _sampler(action, self._rng)

    def load(self, state: State) -> None:
        """Random actions need no weights."""

    def forward(self, obs: Array | dict[int, Array]) -> dict[Any, Array]:
        """Draw an action for each observation; by hand, for observations by id, actions by id."""
        return act_by_id(self, obs) if isinstance(obs, dict) else self._act(obs)

    def _act(self, obs: Array) -> dict[Any, Array]:
        return {"action": self._draw(len(obs))}

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]


class RandomAllowedMode(RandomMode):
    """Draws each choice uniformly from the values that the observed mask allows."""

    def __init__(self, action: Column, seed: int) -> None:
        super().__init__(action, seed)
        self._action = action

    def _act(self, obs: Array) -> dict[Any, Array]:
        return {"action": uniform_allowed_choices(self._action, obs[ACTION_MASK] != 0, self._rng)}


def _sampler(action: Column, rng: np.random.Generator) -> Callable[[int], Array]:
    dtype, shape = np.dtype(action.dtype), action.shape
    if dtype.kind != "f":
        return lambda rows: uniform_choices(action, rows, rng)
    low, high = (bound.reshape(shape) for bound in action_bounds(action))
    if np.isfinite(low).all() and np.isfinite(high).all():
        return lambda rows: rng.uniform(low, high, (rows, *shape)).astype(dtype)
    return lambda rows: np.clip(rng.standard_normal((rows, *shape)), low, high).astype(dtype)
