"""Random network distillation (Burda et al. 2018): what is new is rewarded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.core.batch import Array, Batch, Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import Facts, Node, Surroundings, UnsoundError
from flowrl.core.ports import In, Out
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import made
from flowrl.nodes.observations import Nested, observed_in
from flowrl.nodes.rewards.novelty import Novelty

MODEL = {"hidden": [64, 64]}


class Rnd(Node):
    """Adds to each row's reward a bonus for how new its `next_obs` is, and learns the row."""

    data = In("samples")
    out = Out("samples", about="the same rows, with the bonus in their reward")

    class Config(BaseConfig):
        """The parameters of random network distillation."""

        weight: float = param(0.01, "of the bonus in the reward; its deviation is about 1", ge=0)
        model: Any = part(
            "model",
            "of the predictor, and of the random network that it predicts",
            default={"type": "mlp", **MODEL},
        )
        features: int = param(64, "numbers that the random network gives", ge=1)
        lr: float = param(1e-3, "learning rate of the predictor's Adam", gt=0)
        batch_size: int = param(64, "rows of one gradient step", ge=1)
        updates_per_token: int = param(4, "gradient steps on the rows of each token", ge=0)
        obs_limit: float = param(5.0, "normalised observations are clamped to +- this", gt=0)
        log_every_tokens: int = param(100, "tokens from one line of metrics to the next", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Rows as they come in."""
        schema = surroundings.inputs["data"] or {}
        if isinstance(observed_in(schema, "next_obs"), Nested):
            what = "observations are nested, and rnd looks at one column"
            raise UnsoundError(
                what, "wrap the env, for instance with gymnasium's FlattenObservation"
            )
        for name in ("reward", "next_obs"):
            if name not in schema:
                raise UnsoundError(f"the data has no column '{name}'", "connect a collector")
        return Facts(outs={"out": schema}, imports=("torch",))

    def setup(self) -> None:
        """In a graph the columns are known; by hand the first rows tell."""
        self._tokens = 0
        self._novelty: Novelty | None = None
        schema = self.ctx.inputs.get("data")
        if schema:
            self._build(schema["next_obs"])

    def fire(self, data: Batch) -> Batch:
        """The rows, with their bonus."""
        novelty = self._novelty or self._build(data.schema["next_obs"])
        c = self.config
        bonus = novelty(data["next_obs"], c.updates_per_token, c.batch_size)
        self._report(bonus)
        return data.replace(reward=data["reward"] + c.weight * bonus)

    def _build(self, obs: Column) -> Novelty:
        c = self.config
        model = made(c.model, Mlp(**MODEL))
        sizes = {"features": c.features, "lr": c.lr, "obs_limit": c.obs_limit}
        self._obs, self._novelty = obs, Novelty(model, obs, self.ctx.seed_for, **sizes)
        return self._novelty

    def _report(self, bonus: Array) -> None:
        self._tokens += 1
        if self._tokens % self.config.log_every_tokens == 0:
            self.ctx.metrics(
                {"novelty_mean": float(bonus.mean()), "novelty_max": float(bonus.max())}
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next token's bonus depends on."""
        if self._novelty is None:
            return {"tokens": self._tokens, "obs": None, "novelty": None}
        obs = {"dtype": self._obs.dtype, "shape": self._obs.shape, "n": self._obs.n}
        return {"tokens": self._tokens, "obs": obs, "novelty": self._novelty.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._tokens = int(state["tokens"])
        if (obs := state["obs"]) is None:
            return
        column = Column(obs["dtype"], tuple(obs["shape"]), obs["n"])
        self._build(column).load_state_dict(state["novelty"])
