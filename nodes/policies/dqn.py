"""DQN (Mnih et al. 2015), with double Q-learning, dueling heads and n-step returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.decays import DECAYS
from flowrl.nodes.lazy import functional, tensor, torch
from flowrl.nodes.models.action_mask import has_mask, with_action_mask
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import (
    DuelingHead,
    Heads,
    LinearHead,
    check_names,
    observation_tensors,
    resolve_model,
)
from flowrl.nodes.models.sampling import argmax, epsilon_greedy, masked_epsilon_greedy
from flowrl.nodes.observations import columns_under
from flowrl.nodes.policy import LearnResult, Policy


class Dqn(Policy):
    """Learns the value of each of a few actions, and takes the best one."""

    class Config(BaseConfig):
        model: Any = part("model", "the network of Q(s, ·)", shared="model", default="mlp")
        gamma: float = param(0.99, "discount of a reward one step later", ge=0, le=1)
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        double: bool = param(
            True, "the online network chooses the next action, the target network evaluates it"
        )
        dueling: bool = param(True, "Q as the state's value plus each action's advantage")
        loss: Literal["huber", "mse"] = param("huber", "loss of the temporal-difference error")
        lr: float = param(1e-3, "learning rate of Adam", gt=0)
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        target: Literal["copy", "blend"] = param("copy", "how the target network is updated")
        target_every_iters: int = param(100, "`copy`: train iterations between two copies", ge=1)
        target_tau: float = param(
            0.005, "`blend`: weight of the online network in each train iteration", gt=0, le=1
        )
        epsilon_start: float = param(0.95, "initial share of random actions", ge=0, le=1)
        epsilon_end: float = param(0.1, "final share of random actions", ge=0, le=1)
        epsilon_decay_steps: int = param(
            10_000, "env steps of the decay (`exponential`: to 1/e)", ge=1
        )
        epsilon_shape: Literal["exponential", "linear"] = param("exponential", "shape of the decay")

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        if self.action.n is None or self.action.shape:
            what = f"dqn chooses one of n actions; the env takes {self.action}"
            raise UnsoundError(what, "try ppo", "policy")
        actions = self.action.n
        self.heads: Heads = {
            "q": DuelingHead(actions) if self.config.dueling else LinearHead(actions)
        }
        self.model = with_action_mask(
            resolve_model(self.config.model, Mlp()), self.obs, "q", self.heads
        )
        if self.model.memory_columns():
            what = "dqn learns from single steps, and the model is recurrent"
            raise UnsoundError(
                what, "take an mlp, or the policy r2d2, or ppo with `unroll_steps`", "model"
            )

    def learn_columns(self) -> Schema:
        number = Column("float32")
        obs = {**columns_under("obs", self.obs), **columns_under("next_obs", self.obs)}
        return {**obs, "action": self.action, "reward": number, "discount": number}

    def learn_mode(self, seed: int) -> DqnLearnMode:
        return DqnLearnMode(self, seed)

    def collect_mode(self, seed: int) -> DqnCollectMode:
        return DqnCollectMode(self, seed)

    def eval_mode(self, seed: int) -> DqnEvalMode:
        return DqnEvalMode(self)

    def imported_modules(self, learn: bool) -> tuple[str, ...]:
        return self.model.imported_modules(learn)

    def command(self, progress: Count) -> dict[str, float]:
        return epsilon_command(self.config, progress)


def epsilon_command(config: Any, progress: Count) -> dict[str, float]:
    """The command of a policy that explores with epsilon, the share of random actions."""
    decay = DECAYS[config.epsilon_shape]
    start, end, steps = config.epsilon_start, config.epsilon_end, config.epsilon_decay_steps
    return {"epsilon": decay(start, end, steps, progress.env_steps)}


class ValueLearnMode:
    """A learn mode with an online network of action values and a target network that follows it."""

    name: ClassVar[str]  # the policy's name in errors

    def __init__(self, policy: Any, seed: int) -> None:
        from flowrl.nodes.models.networks import TrainableNetwork

        self.config = policy.config
        module = policy.model.build(policy.obs, policy.heads, seed)
        self.online = TrainableNetwork(module, max_grad_norm=self.config.max_grad_norm)
        self.target = self.online.frozen_copy()
        losses = {"huber": functional.smooth_l1_loss, "mse": functional.mse_loss}
        self.loss = losses[self.config.loss]
        self.iters = 0

    def update_target(self) -> None:
        """Finish a train iteration; update the target network if it is due."""
        self.iters += 1
        if self.config.target == "blend":
            self.target.move_towards(self.online, self.config.target_tau)
        elif self.iters % self.config.target_every_iters == 0:
            self.target.move_towards(self.online)

    def weights(self) -> dict[str, Array]:
        return self.online.weights()

    def state_dict(self) -> dict[str, Any]:
        networks = {"online": self.online.state_dict(), "target": self.target.state_dict()}
        return {**networks, "iters": self.iters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_names(self.name, state, {"online", "target", "iters"})
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self.iters = int(state["iters"])


class DqnLearnMode(ValueLearnMode):
    """Moves Q(s_t, a_t) towards r_t + discount_t * Q_target(s_tp1, a_tp1)."""

    name = "dqn"

    def forward(self, batch: Batch, command: Mapping[str, float]) -> LearnResult:
        """Do one gradient step; the priorities are the absolute errors."""
        target_t = self.target_values(batch)
        action = tensor(batch["action"]).unsqueeze(1)
        obs = observation_tensors(batch, "obs")
        q_t = self.online(obs)["q"].gather(1, action).squeeze(1)
        losses = self.loss(q_t, target_t, reduction="none")
        if "weight" in batch:  # from a prioritised buffer, which corrects for its sampling
            losses = losses * tensor(batch["weight"])
        loss = losses.mean()
        norm = self.online.descend(loss, self.config.lr)
        self.online.observe(obs)
        self.update_target()
        q_t = q_t.detach()
        metrics = {"loss": loss.detach(), "q": q_t.mean(), "grad_norm": norm}
        return LearnResult(metrics, (target_t - q_t).abs_().numpy())

    def target_values(self, batch: Batch) -> Any:
        """r_t + discount_t * Q_target(s_tp1, argmax Q(s_tp1)): van Hasselt et al. 2016, eq. 4."""
        next_obs = observation_tensors(batch, "next_obs")
        with torch.no_grad():
            q_tp1 = self.target(next_obs)["q"]
            chooser = self.online(next_obs)["q"] if self.config.double else q_tp1
            best = chooser.argmax(1, keepdim=True)
            v_tp1 = q_tp1.gather(1, best).squeeze(1)
            return tensor(batch["reward"]) + tensor(batch["discount"]) * v_tp1


class DqnEvalMode:
    """Takes the action with the highest value."""

    def __init__(self, policy: Any) -> None:
        self.model = policy.model.inference_model(policy.obs, policy.heads, ("q",))
        self.dtype = np.dtype(policy.action.dtype)

    def load(self, state: State) -> None:
        self.model.load(state.arrays)

    def forward(self, obs: Array) -> dict[str, Array]:
        return self.choose(self.model(obs))

    def choose(self, heads: Mapping[str, Array]) -> dict[str, Array]:
        return {"action": argmax(heads["q"]).astype(self.dtype, copy=False)}


class DqnCollectMode(DqnEvalMode):
    """Takes a random action with probability epsilon, otherwise the best one."""

    def __init__(self, policy: Any, seed: int) -> None:
        super().__init__(policy)
        self.rng = np.random.default_rng(seed)
        self.epsilon = policy.config.epsilon_start
        self.masked = has_mask(policy.obs, policy.action.n or 0)

    def load(self, state: State) -> None:
        super().load(state)
        self.epsilon = state.command["epsilon"]

    def forward(self, obs: Array) -> dict[str, Array]:
        heads = self.model(obs)
        if not self.masked:
            return self.choose(heads)
        allowed = obs[ACTION_MASK] != 0
        action = masked_epsilon_greedy(heads["q"], allowed, self.epsilon, self.rng)
        return {"action": action.astype(self.dtype, copy=False)}

    def choose(self, heads: Mapping[str, Array]) -> dict[str, Array]:
        action = epsilon_greedy(heads["q"], self.epsilon, self.rng)
        return {"action": action.astype(self.dtype, copy=False)}

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
