"""PPO (Schulman et al. 2017) with generalised advantages, for discrete and continuous actions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.decays import linear_decay
from flowrl.nodes.distributions import distribution_of
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.action_mask import with_action_mask
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import (
    Heads,
    LinearHead,
    check_names,
    observation_tensors,
    resolve_model,
)
from flowrl.nodes.moments import Moments
from flowrl.nodes.observations import columns_under
from flowrl.nodes.policy import AnyActMode, LearnResult, Policy, unroll_column
from flowrl.nodes.recurrence import RecurrentModeAdapter, RowLayout, StepRows, UnrollRows
from flowrl.nodes.returns import gae, normalise

DEFAULT_MLP = {"hidden": [64, 64], "activation": "tanh", "init": "orthogonal", "shared": False}
DEFAULT_MODEL = {"type": "mlp", **DEFAULT_MLP}


class Ppo(Policy):
    """Improves the policy on its own data; clipping the likelihood ratio keeps the steps small."""

    on_policy = True
    learns_across_rows = True

    class Config(BaseConfig):
        model: Any = part(
            "model", "the network of policy and value", shared="model", default=DEFAULT_MODEL
        )
        gamma: float = param(0.99, "discount of a reward one step later", ge=0, le=1)
        gae_lambda: float = param(
            0.95, "1: advantages sum all rewards; 0: they rely on the next value", ge=0, le=1
        )
        epochs: int = param(4, "times that each row is learned from", ge=1)
        minibatch_size: int = param(256, "rows of one gradient step", ge=1)
        clip: float = param(0.2, "likelihood ratios are clipped to this distance from 1", gt=0)
        value_clip: float | None = param(
            None, "values are clipped to this distance from the old value; null: they are not", gt=0
        )
        value_weight: float = param(0.5, "weight of the value's error in the loss", ge=0)
        entropy_weight: float = param(0.01, "weight of the policy's entropy in the loss", ge=0)
        normalise_advantages: bool = param(
            True, "normalise the advantages of a token to mean 0 and standard deviation 1"
        )
        normalise_values: bool = param(False, "the value head predicts normalised returns")
        lr: float = param(3e-4, "learning rate of Adam", gt=0)
        unroll_steps: int | None = param(
            None, "steps of the unrolls that a recurrent model learns from", ge=1
        )
        lr_decay_steps: int | None = param(
            None, "env steps until `lr` has decayed to 0; null: it is constant", ge=1
        )
        eval_draws: bool = param(
            False, "evaluations draw actions like collectors; if false, they take the most likely"
        )
        max_grad_norm: float | None = param(
            0.5, "longer gradients are scaled down to this norm; null: none are", gt=0
        )

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self.distribution = distribution_of(self.action)
        self.heads: Heads = {**self.distribution.heads, "value": LinearHead(1)}
        self.model = with_action_mask(
            resolve_model(self.config.model, Mlp(**DEFAULT_MLP)), self.obs, "logits", self.heads
        )
        if bool(self.model.memory_columns()) != (self.config.unroll_steps is not None):
            what = "a recurrent model must learn from unrolls, and any other model from steps"
            hint = "give the policy `unroll_steps: 16` and the model `type: gru`, or neither"
            raise UnsoundError(what, hint, "unroll_steps")

    def memory_columns(self) -> Schema:
        return self.model.memory_columns()

    def collect_columns(self) -> Schema:
        return {**self.distribution.columns, "logp": Column("float32")}

    def learn_columns(self) -> Schema:
        number, flag = Column("float32"), Column("bool")
        obs = {**columns_under("obs", self.obs), **columns_under("next_obs", self.obs)}
        step = {**obs, "reward": number, "discount": number}
        ends = {"terminated": flag, "truncated": flag, "last": flag}
        columns = {**step, **ends, **self.collect_columns()}
        steps = self.config.unroll_steps
        if steps is None:
            return columns
        return {**{n: unroll_column(c, steps) for n, c in columns.items()}, **self.memory_columns()}

    def learn_mode(self, seed: int) -> PpoLearnMode:
        return PpoLearnMode(self, seed)

    def collect_mode(self, seed: int) -> AnyActMode:
        return self._with_memory(PpoCollectMode(self, seed))

    def eval_mode(self, seed: int) -> AnyActMode:
        mode = PpoCollectMode(self, seed) if self.config.eval_draws else PpoEvalMode(self)
        return self._with_memory(mode)

    def _with_memory(self, mode: PpoEvalMode) -> AnyActMode:
        memory = self.memory_columns()
        return RecurrentModeAdapter(mode, memory) if memory else mode

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        return self.model.imported_modules(learn)

    def command(self, progress: Count) -> dict[str, float]:
        c = self.config
        if c.lr_decay_steps is None:
            return {"lr": c.lr}
        return {"lr": linear_decay(c.lr, 0.0, c.lr_decay_steps, progress.env_steps)}


METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm")


class PpoLearnMode:
    """Computes the advantages of a token's rows, and learns from the rows in several epochs."""

    def __init__(self, policy: Ppo, seed: int) -> None:
        from flowrl.nodes.models.networks import TrainableNetwork

        self.config, self.distribution = policy.config, policy.distribution
        module = policy.model.build(policy.obs, policy.heads, seed)
        self.net = TrainableNetwork(module, max_grad_norm=self.config.max_grad_norm, eps=1e-5)
        memory, unroll = policy.memory_columns(), policy.unroll_steps
        self.layout: RowLayout = (
            UnrollRows(self.net, unroll, memory) if unroll else StepRows(self.net)
        )
        self.is_acting_parameter = functools.partial(
            policy.model.is_acting_parameter, self.distribution.heads
        )
        self.rng = np.random.default_rng(seed)
        self.returns = Moments()  # stays empty unless `normalise_values`

    def forward(self, batch: Batch, command: Mapping[str, float]) -> LearnResult:
        columns, metrics = self._columns(batch), []
        size = self.layout.row_count(self.config.minibatch_size)
        for _ in range(self.config.epochs):
            order = tensor(self.rng.permutation(len(batch)))
            shuffled = [split_minibatches(column, order, size) for column in columns]
            for minibatch in zip(*shuffled, strict=True):
                metrics.append(self.descend_minibatch(list(minibatch), command["lr"]))
        # The moments are updated last, because this iteration must use those that the actor used.
        self.net.observe(observation_tensors(self.layout.steps(batch), "obs"))
        means = torch.stack(metrics).mean(0)
        return LearnResult({**dict(zip(METRICS, means, strict=True)), "lr": command["lr"]})

    def _columns(self, batch: Batch) -> list[Any]:
        """The columns from which minibatches are cut."""
        targets = map(tensor, self.advantages(batch))
        steps = self.layout.steps(batch)
        actions, logp = self.distribution.sampled_actions(steps), tensor(steps["logp"])
        return self.layout.minibatch_columns(batch, actions, logp, *targets)

    def advantages(self, batch: Batch) -> tuple[Array, Array, Array]:
        """The advantages, and the targets and old values of the value head, all (N,)."""
        steps = self.layout.steps(batch)
        cut_t = steps["last"] | steps["terminated"] | steps["truncated"]
        v_t, v_tp1_at_cuts = self.layout.values(batch, cut_t)
        v_tp1 = np.roll(v_t, -1)  # the next row is a row's successor, except at a cut
        v_tp1[cut_t] = v_tp1_at_cuts
        mean, std = self.return_moments()
        scaled_t = v_t * std + mean
        scaled_tp1 = v_tp1 * std + mean
        lambda_ = self.config.gae_lambda
        advantage = gae(steps["reward"], steps["discount"], scaled_t, scaled_tp1, cut_t, lambda_)
        target = scaled_t + advantage
        if self.config.normalise_values:
            self.returns.update(target)
            mean, std = self.return_moments()
        if self.config.normalise_advantages:
            advantage = normalise(advantage)
        return advantage, (target - mean) / std, (scaled_t - mean) / std

    def return_moments(self) -> tuple[np.float32, np.float32]:
        """The mean and standard deviation by which returns are normalised for the value head."""
        return np.float32(self.returns.mean), np.float32(self.returns.std)

    def descend_minibatch(self, minibatch: list[Any], lr: float) -> Any:
        """Do one gradient step on a minibatch; return the metrics."""
        c = self.config
        heads, columns = self.layout.evaluate(minibatch)
        actions, old_logp, advantage, target, v_old = columns
        logp, entropy = self.distribution.logp_entropy(heads, actions)
        log_ratio = logp - old_logp
        ratio = log_ratio.exp()
        policy_loss = clipped_loss(ratio, advantage, c.clip)
        value_loss = squared_loss(heads["value"].squeeze(1), target, v_old, c.value_clip)
        entropy = entropy.mean()
        loss = policy_loss + c.value_weight * value_loss - c.entropy_weight * entropy
        norm = self.net.descend(loss, lr)
        with torch.no_grad():
            kl = (ratio - 1 - log_ratio).mean()  # estimator k3 of Schulman 2020
            clipped = ((ratio - 1).abs() > c.clip).float().mean()
            return torch.stack([policy_loss, value_loss, entropy, kl, clipped, norm])

    def weights(self) -> dict[str, Array]:
        return self.net.weights(self.is_acting_parameter)

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "rng": self.rng.bit_generator.state,
            "returns": self.returns.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names("ppo", state, {"net", "rng", "returns"})
        self.net.load_state_dict(state["net"])
        self.rng.bit_generator.state = state["rng"]
        self.returns.load_state_dict(state["returns"])


def split_minibatches(column: Any, order: Any, rows: int) -> Sequence[Any]:
    """The minibatches of a column (or of nested observations) in the given order of rows."""
    if not isinstance(column, Mapping):
        return column[order].split(rows)
    minibatches = (leaf[order].split(rows) for leaf in column.values())
    return [dict(zip(column, leaves, strict=True)) for leaves in zip(*minibatches, strict=True)]


def clipped_loss(ratio: Any, advantage: Any, clip: float) -> Any:
    """-mean min(ratio A, clip(ratio, 1 - c, 1 + c) A): Schulman et al. 2017, equation 7."""
    return -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def squared_loss(value: Any, target: Any, v_old: Any, clip: float | None) -> Any:
    """mean (V - G)^2; with `clip`, mean max((V - G)^2, (V' - G)^2) with V' = V clipped to v_old +- clip."""
    loss = (value - target).square()
    if clip is not None:
        clipped = v_old + (value - v_old).clamp(-clip, clip)
        loss = torch.max(loss, (clipped - target).square())
    return loss.mean()


class PpoEvalMode:
    """Takes the most likely action."""

    def __init__(self, policy: Ppo) -> None:
        self.distribution = policy.distribution
        self.model = policy.model.inference_model(
            policy.obs, policy.heads, tuple(self.distribution.heads)
        )

    def load(self, state: State) -> None:
        self.model.load(state.arrays)

    def forward(self, obs: Array) -> dict[str, Array]:
        return self.choose(self.model(obs))

    def choose(self, heads: Mapping[str, Array]) -> dict[str, Array]:
        return self.distribution.mode(heads)


class PpoCollectMode(PpoEvalMode):
    """Draws actions, and outputs the logarithm of their likelihood."""

    def __init__(self, policy: Ppo, seed: int) -> None:
        super().__init__(policy)
        self.rng = np.random.default_rng(seed)

    def choose(self, heads: Mapping[str, Array]) -> dict[str, Array]:
        return self.distribution.sample(heads, self.rng)

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
