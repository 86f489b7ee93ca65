"""MAPPO (Yu et al. 2022): PPO of several agents with a critic of the whole state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param, part
from flowrl.nodes.acting import ActingStep, draw, most_likely
from flowrl.nodes.actor_critic import begins_of
from flowrl.nodes.algorithm import Net, UnrollRule
from flowrl.nodes.central_critic import DEFAULT_MODEL, CentralCritic, CentralCriticLearnMode
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.distributions import Distribution, distribution_of
from flowrl.nodes.lazy import torch
from flowrl.nodes.losses import clipped_policy_loss, clipped_value_loss
from flowrl.nodes.models.numpy_model import MEMORY
from flowrl.nodes.moments import Moments
from flowrl.nodes.multi_agent import STATE
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.returns import gae
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import TrainableNetwork

METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm")


class Mappo(CentralCritic):
    """Improves the policy of each agent on its own data, by advantages that a critic of the state finds."""

    reads = (
        "obs", "next_obs", "reward", "discount", "terminated", "truncated", "last", "logp",
    )  # fmt: skip
    unrolls: ClassVar[UnrollRule] = "recurrent"
    on_policy: ClassVar[bool] = True
    learns_across_rows = True
    acting_network = "actor"

    class Config(CentralCritic.Config):
        actor: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        critic: Any = part(
            "model", "the network of the value of the state", shared="model", default=DEFAULT_MODEL
        )
        unroll_steps: int | None = param(
            None, "steps of the unrolls that a recurrent actor learns from", ge=1
        )
        gae_lambda: float = param(
            0.95, "1: advantages sum all rewards; 0: they rely on the next value", ge=0, le=1
        )
        epochs: int = param(5, "times that each row is learned from", ge=1)
        minibatch_size: int = param(1024, "rows of one gradient step", ge=1)
        clip: Scheduled = scheduled(
            0.2, "likelihood ratios are clipped to this distance from 1", gt=0
        )
        value_clip: float | None = param(
            None, "values are clipped to this distance from the old value; null: they are not", gt=0
        )
        normalise_advantages: bool = param(
            True, "normalise the advantages of a token to mean 0 and standard deviation 1"
        )
        normalise_values: bool = param(True, "the value head predicts normalised returns")
        entropy_weight: Scheduled = scheduled(
            0.01, "weight of the policy's entropy in the loss", ge=0
        )
        lr: Scheduled = scheduled(5e-4, "learning rate of the actor", ge=0)
        critic_lr: Scheduled = scheduled(5e-4, "learning rate of the critic", ge=0)
        optimiser: Any = part(
            "optimiser", "the optimiser of all networks", default={"type": "adam", "eps": 1e-5}
        )
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        eval_draws: bool = param(
            False,
            "evaluations draw actions like collectors; if false, they take the most likely",
            only_acting=True,
        )

    distribution: Distribution  # of the actions of one agent

    def setup(self) -> None:
        self.distribution = distribution_of(self.own_action)

    def networks(self) -> dict[str, Net]:
        return {"actor": self.actor_net(), "critic": self.critic_net()}

    def actor_net(self) -> Net:
        """The network of an agent's distribution of actions."""
        heads = self.distribution.heads
        masked = "logits" if "logits" in heads else ""
        return Net(self.model("actor"), {"obs": self.own_obs}, heads, masked=masked)

    def critic_net(self) -> Net:
        """The network of the values of the state."""
        return Net(self.model("critic"), {STATE: self.agents.state}, {"value": self.value_head()})

    def collect_columns(self) -> Schema:
        own = {**self.distribution.columns, "logp": Column("float32")}
        columns = {name: self.agents.each(column) for name, column in own.items()}
        return {**columns, "action": self.action}

    def learn_columns(self) -> Schema:
        drawn = {name: self.collect_columns()[name] for name in self.distribution.columns}
        return {**super().learn_columns(), **self.in_rows(drawn)}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [draw(self.distribution)]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [(draw if self.config.eval_draws else most_likely)(self.distribution)]

    class Learn(CentralCriticLearnMode):
        """Computes the advantages of a token's rows, and learns from the rows in several epochs.

        What an agent does or is worth while it is absent is left out of every mean.
        """

        actor: TrainableNetwork
        critic: TrainableNetwork
        policy: Mappo

        def begin(self) -> None:
            self.returns = Moments()  # stays empty unless `normalise_values`

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            advantage, target, old_value = self.targets(b)
            b.add(advantage=advantage, target=target, old_value=old_value)
            names = [*self.actor_columns(b), "target", "old_value"]
            metrics = [self.descend_minibatch(m) for m in self.minibatches(b, names)]
            means = torch.stack(metrics).mean(0)
            return {**dict(zip(METRICS, means, strict=True)), "lr": self.now.lr}

        def actor_columns(self, b: LearnBatch) -> list[str]:
            """The columns that the loss of the actor needs."""
            names = ["obs", self.policy.distribution.drawn, "logp", "advantage"]
            if self.config.unroll_steps:
                names += ["last", *([MEMORY] if MEMORY in b else [])]
            return names

        def minibatches(self, b: LearnBatch, names: Sequence[str]) -> Any:
            """The minibatches of all epochs, in new orders."""
            c = self.config
            rows = max(1, c.minibatch_size // (c.unroll_steps or 1))
            for _ in range(c.epochs):
                order = self.rng.permutation(b.rows_of_group)
                yield from b.minibatches(names, order, rows)

        def targets(self, b: LearnBatch) -> tuple[Tensor, Tensor, Tensor]:
            """The advantages (…, N) of the agents, and the targets and old values (…, V) of the value head."""
            v_t, v_tp1, cut_t = self.values(b)
            counted = self.rows_of(to_numpy(self.counted(b))) != 0
            mean, std = self.return_moments()
            scaled_t, scaled_tp1 = v_t * std + mean, v_tp1 * std + mean
            r_t, discount_t = self.rows_of(self.rewards(b)), self.rows_of(self.discounts(b))
            advantage = advantages(
                r_t, discount_t, scaled_t, scaled_tp1, cut_t, self.config.gae_lambda
            )
            target = scaled_t + advantage
            if self.config.normalise_values:
                self.returns.update(self.of_group(target)[self.of_group(counted)])
                mean, std = self.return_moments()
            alive = self.rows_of(to_numpy(self.alive(b.obs))) != 0
            advantage = np.ascontiguousarray(np.broadcast_to(advantage, alive.shape))
            if self.config.normalise_advantages:
                advantage = self.normalised_where(alive, advantage)
            lead = b.array("discount").shape
            advantage_t, target_t, old_t = (
                self.tensor(x.reshape(*lead, -1))
                for x in (advantage, (target - mean) / std, (scaled_t - mean) / std)
            )
            return advantage_t, target_t, old_t

        def values(self, b: LearnBatch) -> tuple[Array, Array, Array]:
            """The values of all states and next states (M, V), and the cuts (M,), in the order of time."""
            cut_t = (b.array("last") | b.array("terminated") | b.array("truncated")).reshape(-1)
            cuts = self.tensor(np.flatnonzero(cut_t))
            with torch.no_grad():
                v_t = self.state_values(self.state_of(b.obs)).flatten(0, -2)
                state_tp1 = self.state_of(b.next_obs).flatten(0, -2)
                v_tp1 = v_t.roll(-1, 0)
                v_tp1[cuts] = self.state_values(state_tp1[cuts])
            return to_numpy(v_t), to_numpy(v_tp1), cut_t

        def state_values(self, state: Tensor) -> Tensor:
            """The values (…, V) of states (…, S)."""
            found: Tensor = self.critic(state=state)["value"]
            return found

        def rows_of(self, values: Array) -> Array:
            """Numbers (…, V) of rows or unrolls as those of all steps (M, V)."""
            return values.reshape(-1, values.shape[-1])

        def return_moments(self) -> tuple[np.float32, np.float32]:
            """The mean and standard deviation by which returns are normalised for the value head."""
            return np.float32(self.returns.mean), np.float32(self.returns.std)

        def normalised_where(self, alive: Array, values: Array) -> Array:
            """Numbers (M, N) shifted and scaled by the mean and deviation of those of agents that act."""
            valid = self.of_group(values)[self.of_group(alive)]
            if not len(valid):
                return values
            found: Array = (values - valid.mean()) / (valid.std() + np.float32(1e-8))
            return found

        def heads(self, b: LearnBatch) -> Mapping[str, Any]:
            """The parameters of the distributions of actions (…, N, …) on all steps."""
            if not self.config.unroll_steps:
                return self.actor(self.own(b.obs))
            memory = b.memory if MEMORY in b else None
            return self.unroll(self.actor, b.obs, memory, begins_of(b.last))

        def descend_minibatch(self, b: LearnBatch) -> Any:
            """Do one gradient step for the actor and one for the critic; return the metrics."""
            heads, alive = self.heads(b), self.alive(b.obs)
            loss, *metrics = self.policy_loss(heads, b, b.advantage, alive)
            norm = self.actor.descend(loss, self.now.lr)
            value_loss = self.descend_critic(b)
            policy_loss, entropy, kl, clipped = metrics
            with torch.no_grad():
                return torch.stack([policy_loss, value_loss, entropy, kl, clipped, norm])

        def policy_loss(
            self, heads: Mapping[str, Any], b: LearnBatch, advantage: Any, alive: Any
        ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
            """The loss of the actor, and its parts: the clipped loss, entropy, divergence, and share clipped."""
            logp, entropy = self.policy.distribution.logp_entropy(heads, b)
            log_ratio = logp - b.logp
            ratio = log_ratio.exp()
            clipped_loss = self.mean_where(
                alive, clipped_policy_loss(ratio, advantage, self.now.clip) * alive
            )
            mean_entropy = self.mean_where(alive, entropy * alive)
            loss = clipped_loss - self.now.entropy_weight * mean_entropy
            with torch.no_grad():
                kl = self.mean_where(alive, (ratio - 1 - log_ratio) * alive)  # k3 of Schulman 2020
                is_clipped = (ratio - 1).abs() > self.now.clip
                share = self.mean_where(alive, is_clipped * alive)
            return loss, clipped_loss, mean_entropy, kl, share

        def descend_critic(self, b: LearnBatch) -> Tensor:
            """Do one gradient step for the critic; return its loss."""
            counted = self.counted(b)
            value = self.state_values(self.state_of(b.obs))
            errors = clipped_value_loss(value, b.target, b.old_value, self.config.value_clip)
            loss: Tensor = self.mean_where(counted, errors * counted)
            self.critic.descend(loss, self.now.critic_lr)
            return loss


def advantages(
    r_t: Array, discount_t: Array, v_t: Array, v_tp1: Array, cut_t: Array, lambda_: float
) -> Array:
    """Generalised advantages of each value (M, V); the cuts (M,) are those of the env.

    Where the discount is 0, an agent's own rewards end, and what comes later is another life.
    """
    columns = [
        gae(r_t[:, k], discount_t[:, k], v_t[:, k], v_tp1[:, k], cut_t, lambda_)
        for k in range(r_t.shape[1])
    ]
    return np.stack(columns, 1)
