"""Random network distillation (Burda et al. 2018): what is new is rewarded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Array, Batch, Column
from flowrl.config import Config as BaseConfig
from flowrl.config import param, part
from flowrl.node import Facts, Known, Node, Unsound
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.mlp import Mlp, is_discrete
from flowrl.nodes.models.model import Heads, Linear, made, same_names
from flowrl.nodes.moments import Moments
from flowrl.ports import In, Out

MODEL = {"hidden": [64, 64]}


class Rnd(Node):
    """Adds to each reward how badly a predictor guesses a fixed random network's features of next_obs.

    The predictor learns from every row that passes, so what was often seen is no longer new.
    """

    data = In("samples")
    out = Out("samples", about="the same rows, with the bonus in their reward")

    class Config(BaseConfig):
        """The parameters of random network distillation."""

        weight: float = param(0.01, "of the bonus, which varies by about 1, in the reward", ge=0)
        model: Any = part("model", "the predictor, and the network it predicts", default={"type": "mlp", **MODEL})
        features: int = param(64, "numbers that are to be predicted", ge=1)
        lr: float = param(1e-3, "learning rate of the predictor's Adam", gt=0)
        batch_size: int = param(64, "rows of one gradient step", ge=1)
        updates_per_token: int = param(4, "gradient steps on each token", ge=0)
        obs_limit: float = param(5.0, "normalised observations are clamped to ± this", gt=0)
        log_every_tokens: int = param(100, "tokens from one line of metrics to the next", ge=1)

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        """The rows as they came."""
        schema = known.inputs.get("data")
        if schema is None or not {"reward", "next_obs"} <= set(schema):
            raise Unsound("rows must have the columns 'reward' and 'next_obs'", "connect a collector")
        return Facts(outs={"out": schema})

    def setup(self) -> None:
        """The networks are built when the first rows say what an observation is."""
        self._rng = self.ctx.rng("minibatches")
        self._bonus = Moments()
        self._tokens = 0
        schema = self.ctx.inputs.get("data")
        if schema is not None:
            self._build(schema["next_obs"])

    def fire(self, data: Batch) -> Batch:
        """The rows with their bonus; then the predictor learns them."""
        if not hasattr(self, "_target"):
            self._build(data.schema["next_obs"])
        obs = self._normalised(data["next_obs"])
        with torch.no_grad():
            goal = self._target(obs)["features"]
            novelty = (self._predictor(obs)["features"] - goal).square().mean(1).numpy()
        self._bonus.update(novelty)
        self._learn(obs, goal)
        self._report(novelty)
        bonus = self.config.weight * novelty / np.float32(self._bonus.std)
        return data.replace(reward=data["reward"] + bonus)

    def _build(self, obs: Column) -> None:
        from flowrl.nodes.models.trained import Network, Trained

        model = made(self.config.model, Mlp(**MODEL))
        heads: Heads = {"features": Linear(self.config.features)}
        self._target = Network(model.build(obs, heads, self.ctx.seed_for("target")))
        self._predictor = Trained(model.build(obs, heads, self.ctx.seed_for("predictor")))
        self._seen = None if is_discrete(obs) else Moments(obs.shape)

    def _normalised(self, obs: Array) -> Any:
        """Observations in units of those so far: without, one large number would be all that counts."""
        if self._seen is None:
            return tensor(obs)
        self._seen.update(obs)
        limit = self.config.obs_limit
        units = np.clip((obs - self._seen.mean) / self._seen.std, -limit, limit)
        return tensor(units.astype(np.float32))

    def _learn(self, obs: Any, goal: Any) -> None:
        for _ in range(self.config.updates_per_token):
            index = tensor(self._rng.integers(len(obs), size=self.config.batch_size))
            error = self._predictor(obs[index])["features"] - goal[index]
            self._predictor.descend(error.square().mean(), self.config.lr)

    def _report(self, novelty: Array) -> None:
        self._tokens += 1
        if self._tokens % self.config.log_every_tokens == 0:
            self.ctx.metrics({"novelty_mean": float(novelty.mean()), "novelty_max": float(novelty.max())})

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next token's bonus depends on."""
        state = {"rng": self._rng.bit_generator.state, "tokens": self._tokens}
        state["bonus"] = self._bonus.state_dict()
        if hasattr(self, "_target"):
            state["target"] = self._target.state_dict()
            state["predictor"] = self._predictor.state_dict()
            state["seen"] = None if self._seen is None else self._seen.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...
