"""The form of a reward model: settings, columns that it reads, networks by name, a bonus, and its training.

A subclass of `LearnedRewardModel` is a whole reward model in one file:

    class Surprise(LearnedRewardModel):
        reads = ("next_obs",)                       # the columns of `b`

        class Config(LearnedRewardModel.Config):    # settings; any number may be a schedule
            model: Any = part("model", "…", default="auto")

        @classmethod
        def networks(cls, config, steps):           # their models, inputs and heads
            return {"predictor": Net(…)}

        def bonus(self, b): …                       # the bonus (N,) of each step
        def train(self, b): …                       # one gradient step on a minibatch; returns metrics

A model that learns from an expert is a subclass of `ImitationModel` (`nodes/imitation.py`). A model without networks is
a subclass of `RewardModel`, or of `ExpertRewardModel`. From these declarations follow the node's columns,
refusals, metrics and state. `docs/rewards.md` builds a reward model from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import model_validator

from flowrl.core.attribute_state import load_attributes, state_of_attributes
from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.nodes.advantages import refuse_estimates
from flowrl.nodes.algorithm import Net
from flowrl.nodes.configured_parts import configured_part
from flowrl.nodes.ignored_settings import check_models
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.input_columns import input_columns
from flowrl.nodes.models.model import Model, checked_model
from flowrl.nodes.moments import Moments, ObsMoments
from flowrl.nodes.nstep import require_single_rewards
from flowrl.nodes.observations import SEPARATOR
from flowrl.nodes.recent_rows import RecentRows
from flowrl.nodes.reward_steps import (
    REWARD,
    StepBatch,
    StepColumns,
    columns_data,
    columns_from_data,
)
from flowrl.nodes.schedules import Scheduled, complete_schedules, current_value, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network

ENV_REWARD = "reward/env"
OBS_LIMIT = 5.0  # normalised observations are clipped to ± this value


class RewardModel(Node):
    """Gives each row the reward `reward_weight * reward + weight * bonus`. A subclass defines `bonus`."""

    data = In("samples")
    out = Out("samples", about="the same rows, with the model's bonus in their reward")

    reads: ClassVar[tuple[str, ...]] = ()  # the columns of `b` in `bonus`
    may_end_run = False
    unsaved: ClassVar[tuple[str, ...]] = ("steps",)

    class Config(BaseConfig):
        weight: Scheduled = scheduled(1.0, "factor of the bonus")
        reward_weight: Scheduled = scheduled(
            1.0, "factor of the reward that arrives; 0: the bonus replaces it"
        )
        parts: bool = param(
            False,
            "also give the parts of the reward as columns: `reward/env`, and `reward/` and the type's name",
        )
        log_every_tokens: int = param(100, "tokens from one report of metrics to the next", ge=1)
        may_leave_no_reward: ClassVar[bool] = False  # whether both weights may be 0

        @model_validator(mode="before")
        @classmethod
        def _complete(cls, values: Any) -> Any:
            return complete_schedules(cls, values) if isinstance(values, Mapping) else values

        @model_validator(mode="after")
        def _check_weights(self) -> Any:
            if self.weight == 0 and self.reward_weight == 0 and not self.may_leave_no_reward:
                what = "with `weight: 0` and `reward_weight: 0`, all rewards are 0"
                raise UnsoundError(what, "give one of them another value", "weight")
            return self

    # What a subclass declares

    def bonus(self, b: StepBatch) -> Any:
        """The bonus of each step, a tensor or an array (N,)."""
        raise NotImplementedError(f"{type(self).__name__} does not define bonus")

    @classmethod
    def check(cls, config: Any, steps: StepColumns) -> None:
        """Raise `UnsoundError` if the model cannot work with these columns."""

    def begin(self) -> None:
        """Make what the model has beside its networks. Attributes are state, and are saved."""

    # What follows from it

    @classmethod
    def type_name(cls) -> str:
        return cls.__name__.lower()

    @classmethod
    def declared_needs(cls) -> Mapping[str, str]:
        return {"columns": ", ".join([REWARD, *(n for n in cls.reads if n != REWARD)])}

    @classmethod
    def part_column(cls) -> str:
        """The column of the bonus, if the parts are given as columns."""
        return f"{REWARD}/{cls.type_name()}"

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        schema = surroundings.inputs["data"] or {}
        steps = StepColumns.of(cls.type_name(), schema)
        for name in (REWARD, *cls.reads):
            steps.under(name)
        require_single_rewards(schema, cls.type_name())
        refuse_estimates(schema, cls.type_name())
        cls.check(config, steps)
        parts = {}
        if config.parts:
            if cls.part_column() in schema:
                what = f"two reward models of the type {cls.type_name()} give the column '{cls.part_column()}'"
                raise UnsoundError(what, "leave out `parts: true` of one of them", "parts")
            parts = dict.fromkeys((ENV_REWARD, cls.part_column()), schema[REWARD])
        changed = frozenset({REWARD, *parts})
        return Facts(outs={"out": {**schema, **parts}}, changes={"out": changed})

    def setup(self) -> None:
        """Build the model if the columns are known. Without the engine, the first rows define them."""
        self.tokens = 0
        self.steps: StepColumns | None = None
        if schema := self.ctx.inputs.get("data"):
            self._build(schema)

    def fire(self, data: Batch) -> Batch:
        """Return the rows with the bonus in their reward."""
        return self.rewarded(data)

    def rewarded(self, data: Batch) -> Batch:
        """Return the rows with the bonus in their reward, and learn from them."""
        if self.steps is None:
            self._build(data.schema)
        reward = data[REWARD]
        self.tokens += 1
        found = self.estimate_and_learn(data) if len(data) else np.zeros(0, np.float32)
        bonus = found.reshape(reward.shape)
        weights = self.current_settings("reward_weight", "weight")
        total = (
            np.float32(weights["reward_weight"]) * reward + np.float32(weights["weight"]) * bonus
        )
        if self.reports_now and len(data):
            means = {"env_reward_mean": reward.mean(), "bonus_mean": bonus.mean()}
            self.ctx.metrics({**means, "bonus_max": bonus.max(), **weights})
        columns = {REWARD: total}
        if self.config.parts:
            columns[ENV_REWARD] = data.columns.get(ENV_REWARD, reward)
            columns[self.part_column()] = bonus
        return data.replace(**columns)

    def estimate_and_learn(self, data: Batch) -> Array:
        """Return the bonus of each step (N,), then learn from the rows."""
        return as_floats(self.bonus(self.as_steps(self.step_arrays(data))))

    @property
    def reports_now(self) -> bool:
        return self.tokens % self.config.log_every_tokens == 0

    def current_settings(self, *names: str) -> dict[str, float]:
        """The current values of settings that may be schedules."""
        progress = self.ctx.clock.total
        return {name: current_value(getattr(self.config, name), progress) for name in names}

    def step_arrays(self, data: Batch) -> dict[str, Array]:
        """The columns that the model reads, one row for each step."""
        assert self.steps is not None
        columns = {n: c for name in self.reads for n, c in self.steps.under(name).items()}
        return {n: data[n].reshape(-1, *c.shape) for n, c in columns.items()}

    def as_steps(self, columns: Mapping[str, Array], expert: StepBatch | None = None) -> StepBatch:
        """Columns of steps as the model sees them."""
        found: dict[str, Any] = {}
        for name in self.reads:
            if name in columns:
                found[name] = self.seen(name, columns[name])
                continue
            prefix = name + SEPARATOR
            leaves = {n.removeprefix(prefix): n for n in columns if n.startswith(prefix)}
            found[name] = {leaf: self.seen(n, columns[n]) for leaf, n in leaves.items()}
        return StepBatch(found, expert)

    def seen(self, name: str, values: Array) -> Any:
        """The values of a column as the model sees them."""
        return values

    def _build(self, schema: Schema) -> None:
        self.steps = StepColumns.of(self.type_name(), schema)
        self.make_parts(self.steps)
        self.begin()
        state_of_attributes(self, self._attributes_without_state())  # refuses what cannot be saved

    def make_parts(self, steps: StepColumns) -> None:
        """Make the parts of the model for these columns."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "columns": {} if self.steps is None else columns_data(self.steps.columns),
            "model": state_of_attributes(self, self._attributes_without_state()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.steps is None and state["columns"]:
            self._build(columns_from_data(state["columns"]))
        load_attributes(self, state["model"], self._attributes_without_state())


class LearnedRewardModel(RewardModel):
    """A reward model with networks, which it trains on the newest rows after it has rated them."""

    class Config(RewardModel.Config):
        lr: Scheduled = scheduled(1e-3, "learning rate", gt=0)
        optimiser: Any = part("optimiser", "the optimiser of all networks", default="adam")
        max_grad_norm: float | None = param(
            None, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        batch_size: int = param(64, "rows in each gradient step", ge=1)
        updates_per_token: int = param(4, "gradient steps for each token of rows", ge=1)
        newest_rows: int = param(1000, "minibatches are drawn from the newest so many steps", ge=1)
        normalise_obs: bool = param(
            True, "normalise real-valued observations by their running mean and deviation"
        )
        normalise_bonus: bool = param(True, "divide the bonus by its running standard deviation")

    frozen: ClassVar[tuple[str, ...]] = ()  # the networks that are never trained

    # What a subclass declares

    @classmethod
    def networks(cls, config: Any, steps: StepColumns) -> dict[str, Net]:
        """The networks by name. The model has an attribute for each."""
        raise NotImplementedError(f"{cls.__name__} does not define networks")

    def train(self, b: StepBatch) -> dict[str, Any]:
        """Do one gradient step on a minibatch; return metrics."""
        raise NotImplementedError(f"{type(self).__name__} does not define train")

    # What follows from it

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        facts = super().describe(config, surroundings)
        return replace(facts, imports=("torch",))

    @classmethod
    def check(cls, config: Any, steps: StepColumns) -> None:
        nets = cls.networks(config, steps)
        for name, net in nets.items():
            cls.resolved(name, net)
        check_models(config, nets)

    @classmethod
    def resolved(cls, name: str, net: Net) -> Net:
        """The network with the model for its inputs, which are checked."""
        columns = input_columns(net.inputs)
        model = net.model.for_obs(columns)
        model.check_obs(columns)
        if model.memory_columns() or model.keeps_batch_statistics(columns):
            what = f"the network '{name}' of {cls.type_name()} can neither be recurrent nor normalise by batches"
            raise UnsoundError(what, "take an mlp or a cnn, or `type: auto`", "model")
        if getattr(model.config, "noisy", False):
            what = f"the network '{name}' of {cls.type_name()} does not act, so its noise is never drawn"
            raise UnsoundError(what, "leave out `noisy`", "model")
        if getattr(model.config, "normalise_obs", False) and not set(net.inputs) <= {*cls.reads}:
            what = (
                f"the network '{name}' of {cls.type_name()} sees what another network gives, and no observations, so "
                "`normalise_obs` has no effect"
            )
            raise UnsoundError(what, "leave out `normalise_obs`", "model")
        return replace(net, model=model)

    @staticmethod
    def model_of(config: Any, name: str = "model") -> Model:
        """The model that a parameter stands for."""
        return checked_model(configured_part(config, name), name)

    def make_parts(self, steps: StepColumns) -> None:
        c = self.config
        self.rng = self.ctx.rng("minibatches")
        self.generator = torch.Generator().manual_seed(self.ctx.seed_for("generator"))
        self.recent = RecentRows(c.newest_rows)
        self.bonus_moments = Moments()
        self.obs_moments = ObsMoments(self._observed(steps)) if c.normalise_obs else None
        for name, net in self.networks(c, steps).items():
            setattr(self, name, self._network(name, self.resolved(name, net)))

    def estimate_and_learn(self, data: Batch) -> Array:
        arrays = self.step_arrays(data)
        if self.obs_moments is not None:
            self.obs_moments.update(arrays)
        with torch.no_grad():
            bonus = as_floats(self.bonus(self.as_steps(arrays)))
        if self.config.normalise_bonus:
            self.bonus_moments.update(bonus)
            bonus = bonus / np.float32(self.bonus_moments.std)
        self.learn(arrays)
        return bonus

    def learn(self, arrays: Mapping[str, Array]) -> None:
        """Do the gradient steps that are due after a token with these steps."""
        self.recent.add(arrays)
        self.update()

    def update(self) -> None:
        """Do the gradient steps for one token."""
        found: dict[str, Any] = {}
        for _ in range(self.config.updates_per_token):
            b = self.minibatch()
            found = self.train(b)
            self._observe(b)
        if found and self.reports_now:
            self.ctx.metrics({name: float(value) for name, value in found.items()})

    def minibatch(self) -> StepBatch:
        """Draw steps from the newest ones."""
        return self.as_steps(self.drawn(self.recent))

    def drawn(self, rows: RecentRows) -> dict[str, Array]:
        """Draw the rows of a minibatch."""
        return rows.take(self.rng.integers(len(rows), size=self.config.batch_size))

    @property
    def lr(self) -> float:
        """The current learning rate."""
        return self.current_settings("lr")["lr"]

    def seen(self, name: str, values: Array) -> Any:
        """A tensor: of observations in units of their deviations, and of actions scaled to (-1, 1)."""
        moments = self.obs_moments.of(name) if self.obs_moments is not None else None
        if moments is not None:
            values = np.clip((values - moments.mean) / moments.std, -OBS_LIMIT, OBS_LIMIT)
        elif name == "action" and self.steps is not None and (box := self.steps.box) is not None:
            values = (values.reshape(len(values), -1) - box.middle) / box.half
        return tensor(values.astype(np.float32) if values.dtype.kind == "f" else values)

    def _observed(self, steps: StepColumns) -> Schema:
        return {
            n: c
            for name in self.reads
            if name.endswith("obs")
            for n, c in steps.under(name).items()
        }

    def _network(self, name: str, net: Net) -> Network:
        from flowrl.nodes.models.networks import Network, TrainableNetwork

        columns, seed = input_columns(net.inputs), self.ctx.seed_for(name)
        module = net.model.build(columns, net.heads, seed, net.copies)
        if name in self.frozen:
            return Network(module.requires_grad_(False), net.inputs)
        optimiser = configured_part(self.config, "optimiser")
        limit = self.config.max_grad_norm
        heads = {} if net.copies else net.heads
        return TrainableNetwork(
            module, net.inputs, heads=heads, optimiser=optimiser, max_grad_norm=limit
        )

    def _observe(self, b: StepBatch) -> None:
        """Let networks that normalise their inputs update their statistics."""
        from flowrl.nodes.models.networks import trainable_networks

        for network in trainable_networks(self).values():
            if hasattr(network.module, "observe") and all(name in b for name in network.inputs):
                observe_inputs(network, {name: getattr(b, name) for name in network.inputs})


def observe_inputs(network: Network, inputs: Mapping[str, Any]) -> None:
    """Let a network update its statistics of inputs, by name."""
    if list(inputs) == ["obs"]:
        network.observe(inputs["obs"])
    else:
        network.observe(**inputs)


def as_floats(values: Any) -> Array:
    """A tensor or an array as an array of float32."""
    array = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    return np.asarray(array, np.float32)
