"""Recurrent DQN from stored sequences (R2D2: Kapturowski et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import UnsoundError
from flowrl.core.state import Count
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.models.gru import Gru
from flowrl.nodes.models.model import (
    DuelingHead,
    Heads,
    LinearHead,
    observation_tensors,
    resolve_model,
)
from flowrl.nodes.observations import columns_under, leaf_columns
from flowrl.nodes.policies.dqn import (
    Dqn,
    DqnCollectMode,
    DqnEvalMode,
    ValueLearnMode,
    epsilon_command,
)
from flowrl.nodes.policy import AnyActMode, LearnResult, Policy, unroll_column
from flowrl.nodes.recurrence import RecurrentModeAdapter, flatten_time

EPS = 1e-3  # the share of x in h(x), which keeps the inverse stable


class R2d2(Policy):
    """Learns action values with a recurrent network; a row of its batches is a sequence.

    A collector outputs single steps with the memory before each, and a `sequence_buffer` cuts
    sequences from them. The first `burn_in_steps` of a sequence only bring the memory up to date.
    """

    class Config(Dqn.Config):
        model: Any = part("model", "the network of Q(s, ·)", shared="model", default="gru")
        unroll_steps: int = param(20, "steps of a sequence; the same as in the buffer", ge=2)
        burn_in_steps: int = param(
            0, "first steps of a sequence, which only bring the memory up to date", ge=0
        )
        rescale: bool = param(True, "learn h(value), which compresses large values")
        target_steps: int = param(5, "rewards that a target sums within its sequence", ge=1)

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        c = self.config
        if self.action.n is None or self.action.shape:
            raise UnsoundError(
                f"r2d2 chooses one of n actions; the env takes {self.action}", "", "policy"
            )
        if ACTION_MASK in leaf_columns(self.obs):
            raise UnsoundError("r2d2 does not support action masks", "take dqn", "policy")
        if c.nstep != 1:
            raise UnsoundError(
                "r2d2 needs rows with one reward", "give `target_steps` instead", "nstep"
            )
        if c.burn_in_steps >= c.unroll_steps:
            what = f"{c.burn_in_steps} of {c.unroll_steps} steps are burn-in, so no step is learned from"
            raise UnsoundError(what, "make `unroll_steps` larger", "unroll_steps")
        self.heads: Heads = {"q": (DuelingHead if c.dueling else LinearHead)(self.action.n)}
        self.model = resolve_model(c.model, Gru())
        if not self.model.memory_columns():
            raise UnsoundError("the model is not recurrent", "take a gru, or dqn", "model")

    @property
    def unroll_steps(self) -> None:
        """None, because collectors output single steps, from which the buffer cuts sequences."""
        return

    def memory_columns(self) -> Schema:
        return self.model.memory_columns()

    def learn_columns(self) -> Schema:
        number, steps = Column("float32"), self.config.unroll_steps
        columns = {
            **columns_under("obs", self.obs),
            **columns_under("next_obs", self.obs),
            "action": self.action,
        }
        columns |= {"reward": number, "discount": number, "valid": Column("bool")}
        return {**{n: unroll_column(c, steps) for n, c in columns.items()}, **self.memory_columns()}

    def priority_column(self) -> Column:
        return Column("float32", (self.config.unroll_steps,))

    def learn_mode(self, seed: int) -> R2d2LearnMode:
        return R2d2LearnMode(self, seed)

    def collect_mode(self, seed: int) -> AnyActMode:
        return RecurrentModeAdapter(DqnCollectMode(self, seed), self.memory_columns())

    def eval_mode(self, seed: int) -> AnyActMode:
        return RecurrentModeAdapter(DqnEvalMode(self), self.memory_columns())

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        return self.model.imported_modules(learn)

    def command(self, progress: Count) -> dict[str, float]:
        return epsilon_command(self.config, progress)


class R2d2LearnMode(ValueLearnMode):
    """Moves the value of each step after the burn-in towards its n-step target."""

    name = "r2d2"

    def __init__(self, policy: R2d2, seed: int) -> None:
        super().__init__(policy, seed)
        (self.memory,) = policy.memory_columns()

    def forward(self, batch: Batch, command: Mapping[str, float]) -> LearnResult:
        """Do one gradient step; the priorities are the absolute errors of all steps (W, T)."""
        c, obs = self.config, _joined_obs(batch)
        # (W, T + 1 - burn-in, actions)
        q = self.action_values(self.online, obs, batch[self.memory])
        with torch.no_grad():
            q_target = self.action_values(self.target, obs, batch[self.memory])
            chooser = q.detach() if c.double else q_target
            v = q_target.gather(2, chooser.argmax(2, keepdim=True)).squeeze(2)
        learned = slice(c.burn_in_steps, None)
        columns = [tensor(batch[n][:, learned]) for n in ("reward", "discount", "valid", "action")]
        reward, discount, valid, action = columns
        v = restore_value(v) if c.rescale else v
        target = nstep_targets(reward, discount, valid, v, c.target_steps)
        target = rescale_value(target) if c.rescale else target
        q_t = q[:, :-1].gather(2, action.unsqueeze(2)).squeeze(2)
        losses = self.loss(q_t, target, reduction="none") * valid
        if "weight" in batch:
            losses = losses * tensor(batch["weight"]).unsqueeze(1)
        loss = losses.sum() / valid.sum().clamp_(min=1)
        norm = self.online.descend(loss, c.lr)
        self.online.observe(flatten_time(_slice_time(obs, slice(-1))))
        self.update_target()
        errors = np.zeros(batch["reward"].shape, np.float32)
        errors[:, learned] = ((target - q_t.detach()).abs() * valid).numpy()
        metrics = {"loss": loss.detach(), "q": q_t.detach().mean(), "grad_norm": norm}
        return LearnResult(metrics, errors)

    def action_values(self, net: Any, obs: Any, memory: Array) -> Any:
        """The action values of all steps after the burn-in, and of the last step's next observation."""
        burn_in, state = self.config.burn_in_steps, tensor(memory)
        if burn_in:
            with torch.no_grad():
                states = _unroll(net.module, _slice_time(obs, slice(burn_in)), state)[self.memory]
            state = states.view(len(memory), burn_in, -1)[:, -1]
        q = _unroll(net.module, _slice_time(obs, slice(burn_in, None)), state)["q"]
        return q.view(len(memory), -1, q.shape[1])


def rescale_value(x: Any) -> Any:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x (Pohlen et al. 2018, proposition A.2)."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + EPS * x


def restore_value(x: Any) -> Any:
    """The inverse of h: sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)."""
    root = (1 + 4 * EPS * (x.abs() + 1 + EPS)).sqrt()
    return x.sign() * (((root - 1) / (2 * EPS)).square() - 1)


def nstep_targets(reward: Any, discount: Any, valid: Any, v: Any, steps: int) -> Any:
    """n-step targets within sequences; near the last valid step they sum fewer rewards.

    G_t = r_t + d_t (r_{t+1} + d_{t+1} (… + d v)), over up to `steps` rewards.
    """
    # reward, discount, valid: (W, T); v: (W, T + 1), because it includes the last next observation
    length = reward.shape[1]
    steps = min(steps, length)
    target = v[:, torch.arange(length).add_(steps).clamp_(max=length)]
    ends = valid.sum(1, keepdim=True)
    beyond_end = torch.arange(length) + steps > ends  # the window passes the last valid step
    target = torch.where(beyond_end, v.gather(1, ends).expand_as(target), target)
    for ahead in range(steps - 1, -1, -1):
        kept = length - ahead
        summed = reward[:, ahead:] + discount[:, ahead:] * target[:, :kept]
        summed = torch.where(valid[:, ahead:], summed, target[:, :kept])
        target = torch.cat([summed, target[:, kept:]], 1)
    return target


def _joined_obs(batch: Batch) -> Any:
    """The observations of all steps and the last step's next observation (W, T + 1, …)."""
    obs, next_obs = observation_tensors(batch, "obs"), observation_tensors(batch, "next_obs")
    if isinstance(obs, Mapping):
        return {k: torch.cat([obs[k][:, :1], next_obs[k]], 1) for k in obs}
    return torch.cat([obs[:, :1], next_obs], 1)


def _slice_time(obs: Any, steps: slice) -> Any:
    if isinstance(obs, Mapping):
        return {leaf: column[:, steps] for leaf, column in obs.items()}
    return obs[:, steps]


def _unroll(module: Any, obs: Any, memory: Any) -> Any:
    """Compute the heads of all steps; no episode begins within a sequence."""
    column = next(iter(obs.values())) if isinstance(obs, Mapping) else obs
    return module(flatten_time(obs), memory, torch.zeros(column.shape[:2], dtype=torch.bool))
