"""Random network distillation (Burda et al. 2018): a bonus for new observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import Facts, Node, Surroundings, UnsoundError
from flowrl.core.ports import In, Out
from flowrl.core.saved_state import check_names
from flowrl.nodes.configured_parts import configured_part
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.features import is_discrete
from flowrl.nodes.models.heads import Heads, LinearHead
from flowrl.nodes.models.model import Model, checked_model
from flowrl.nodes.moments import Moments
from flowrl.nodes.observations import NestedColumns, obs_columns_in

EMBEDDING = "embedding"


class Rnd(Node):
    """Adds a bonus for the novelty of `next_obs` to each row's reward, and trains on the rows."""

    may_end_run = False
    data = In("samples")
    out = Out("samples", about="the same rows, with the bonus in their reward")

    class Config(BaseConfig):
        weight: float = param(
            0.01, "factor of the bonus, whose standard deviation is about 1", ge=0
        )
        model: Any = part(
            "model",
            "the model of the predictor, and of the random network that it predicts",
            default={"type": "auto", "hidden": [64, 64]},
        )
        features: int = param(64, "outputs of the random network", ge=1)
        lr: float = param(1e-3, "learning rate of the predictor's Adam", gt=0)
        batch_size: int = param(64, "rows in each gradient step", ge=1)
        updates_per_token: int = param(4, "gradient steps on the rows of each token", ge=0)
        obs_limit: float = param(5.0, "normalised observations are clipped to ± this value", gt=0)
        log_every_tokens: int = param(100, "tokens from one report of metrics to the next", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        schema = surroundings.inputs["data"] or {}
        if isinstance(obs_columns_in(schema, "next_obs"), NestedColumns):
            what = "rnd reads one observation column, but the observations are nested"
            raise UnsoundError(
                what, "wrap the env, for instance with gymnasium's FlattenObservation"
            )
        for name in ("reward", "next_obs"):
            if name not in schema:
                raise UnsoundError(f"the data has no column '{name}'", "connect a collector")
        return Facts(outs={"out": schema}, imports=("torch",))

    def setup(self) -> None:
        """Build the networks if the columns are known. Without the engine, the first rows define them."""
        self._tokens = 0
        self._novelty: NoveltyEstimator | None = None
        schema = self.ctx.inputs.get("data")
        if schema:
            self._build(schema["next_obs"])

    def fire(self, data: Batch) -> Batch:
        """Return the rows with the bonus added to their reward."""
        estimator = self._novelty or self._build(data.schema["next_obs"])
        c = self.config
        novelty = estimator.estimate_and_learn(data["next_obs"], c.updates_per_token, c.batch_size)
        self._report(novelty)
        return data.replace(reward=data["reward"] + c.weight * novelty)

    def _build(self, obs: Column) -> NoveltyEstimator:
        c = self.config
        model = checked_model(configured_part(c, "model")).for_obs(obs)
        params = {"features": c.features, "lr": c.lr, "obs_limit": c.obs_limit}
        self._obs, self._novelty = obs, NoveltyEstimator(model, obs, self.ctx.seed_for, **params)
        return self._novelty

    def _report(self, novelty: Array) -> None:
        self._tokens += 1
        if self._tokens % self.config.log_every_tokens == 0:
            self.ctx.metrics(
                {"novelty_mean": float(novelty.mean()), "novelty_max": float(novelty.max())}
            )

    def state_dict(self) -> dict[str, Any]:
        if self._novelty is None:
            return {"tokens": self._tokens, "obs": None, "novelty": None}
        obs = {"dtype": self._obs.dtype, "shape": self._obs.shape, "n": self._obs.n}
        return {"tokens": self._tokens, "obs": obs, "novelty": self._novelty.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._tokens = int(state["tokens"])
        if (obs := state["obs"]) is None:
            return
        column = Column(obs["dtype"], tuple(obs["shape"]), obs["n"])
        self._build(column).load_state_dict(state["novelty"])


class NoveltyEstimator:
    """A predictor's error on the features of a fixed random network (Burda et al. 2018, section 2.2).

    The predictor is trained on the observations it rates, so its error is small on those that are
    frequent and large on those that are new.
    """

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
        from flowrl.nodes.models.networks import Network, TrainableNetwork

        heads: Heads = {EMBEDDING: LinearHead(features)}
        inputs = {"obs": obs}
        self.target = Network(model.build(obs, heads, seed_for("target")), inputs)
        self.predictor = TrainableNetwork(model.build(obs, heads, seed_for("predictor")), inputs)
        self.rng = np.random.Generator(np.random.PCG64(seed_for("minibatches")))
        self.lr, self.obs_limit = lr, obs_limit
        self.obs_moments = None if is_discrete(obs) else Moments(obs.shape)
        self.novelty_moments = Moments()

    def estimate_and_learn(self, obs: Array, updates: int, batch_size: int) -> Array:
        """Return each row's novelty in units of its running deviation, then train on the rows."""
        inputs = self._normalise(obs)
        with torch.no_grad():
            goal = self.target(inputs)[EMBEDDING]
            error = (self.predictor(inputs)[EMBEDDING] - goal).square().mean(1).numpy()
        self.novelty_moments.update(error)
        for _ in range(updates):
            self._descend(inputs, goal, batch_size)
        return error / np.float32(self.novelty_moments.std)

    def _normalise(self, obs: Array) -> Any:
        """Normalise by the running moments, so that no component dominates by its scale alone."""
        if self.obs_moments is None:
            return tensor(obs)
        self.obs_moments.update(obs)
        normalised = (obs - self.obs_moments.mean) / self.obs_moments.std
        return tensor(np.clip(normalised, -self.obs_limit, self.obs_limit).astype(np.float32))

    def _descend(self, inputs: Any, goal: Any, batch_size: int) -> None:
        index = tensor(self.rng.integers(len(inputs), size=batch_size))
        error = self.predictor(inputs[index])[EMBEDDING] - goal[index]
        self.predictor.descend(error.square().mean(), self.lr)

    def state_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.state_dict(),
            "predictor": self.predictor.state_dict(),
            "rng": self.rng.bit_generator.state,
            "obs_moments": None if self.obs_moments is None else self.obs_moments.state_dict(),
            "novelty_moments": self.novelty_moments.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        names = {"target", "predictor", "rng", "obs_moments", "novelty_moments"}
        check_names("novelty", state, names)
        self.target.load_state_dict(state["target"])
        self.predictor.load_state_dict(state["predictor"])
        self.rng.bit_generator.state = state["rng"]
        self.novelty_moments.load_state_dict(state["novelty_moments"])
        if self.obs_moments is not None:
            self.obs_moments.load_state_dict(state["obs_moments"])
