"""How new observations are: a predictor's error on the features of a fixed random network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.features import is_discrete
from flowrl.nodes.models.model import Heads, Linear, Model, same_names
from flowrl.nodes.moments import Moments

FEATURES = "features"


class Novelty:
    """What is seen often is predicted well; what is new is not (Burda et al. 2018, section 2.2)."""

    def __init__(
        self,
        model: Model,
        obs: Column,
        seed_for: Callable[[str], int],
        *,
        features: int,
        lr: float,
        obs_limit: float,
    ) -> None:
        from flowrl.nodes.models.trained import Network, Trained

        heads: Heads = {FEATURES: Linear(features)}
        self.target = Network(model.build(obs, heads, seed_for("target")))
        self.predictor = Trained(model.build(obs, heads, seed_for("predictor")))
        self.rng = np.random.Generator(np.random.PCG64(seed_for("minibatches")))
        self.lr, self.obs_limit = lr, obs_limit
        self.seen = None if is_discrete(obs) else Moments(obs.shape)
        self.found = Moments()  # of the novelty itself: its unit

    def __call__(self, obs: Array, updates: int, batch_size: int) -> Array:
        """The novelty of each row, in units of its deviation so far; then the rows are learned."""
        inputs = self._normalised(obs)
        with torch.no_grad():
            goal = self.target(inputs)[FEATURES]
            error = (self.predictor(inputs)[FEATURES] - goal).square().mean(1).numpy()
        self.found.update(error)
        for _ in range(updates):
            self._step(inputs, goal, batch_size)
        return error / np.float32(self.found.std)

    def _normalised(self, obs: Array) -> Any:
        """In units of what was seen so far: else the largest numbers would be all that counts."""
        if self.seen is None:
            return tensor(obs)
        self.seen.update(obs)
        units = (obs - self.seen.mean) / self.seen.std
        return tensor(np.clip(units, -self.obs_limit, self.obs_limit).astype(np.float32))

    def _step(self, inputs: Any, goal: Any, batch_size: int) -> None:
        index = tensor(self.rng.integers(len(inputs), size=batch_size))
        error = self.predictor(inputs[index])[FEATURES] - goal[index]
        self.predictor.descend(error.square().mean(), self.lr)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next novelty depends on."""
        return {
            "target": self.target.state_dict(),
            "predictor": self.predictor.state_dict(),
            "rng": self.rng.bit_generator.state,
            "seen": None if self.seen is None else self.seen.state_dict(),
            "found": self.found.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        same_names("novelty", state, {"target", "predictor", "rng", "seen", "found"})
        self.target.load_state_dict(state["target"])
        self.predictor.load_state_dict(state["predictor"])
        self.rng.bit_generator.state = state["rng"]
        self.found.load_state_dict(state["found"])
        if self.seen is not None:
            self.seen.load_state_dict(state["seen"])
