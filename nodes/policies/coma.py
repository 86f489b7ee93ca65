"""COMA (Foerster et al. 2018): a central critic says what each agent contributed, by what else it could have done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes.acting import ActingStep, Columns, NetworkActMode, greedy
from flowrl.nodes.algorithm import Net
from flowrl.nodes.central_critic import DEFAULT_MODEL
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import functional, torch
from flowrl.nodes.losses import chosen
from flowrl.nodes.models.action_mask import FORBIDDEN
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.models.input_columns import Inputs
from flowrl.nodes.models.sampling import sample_categorical
from flowrl.nodes.multi_agent import STATE, MultiAgent, MultiAgentLearnMode
from flowrl.nodes.multi_agent_losses import (
    actions_of_others,
    counterfactual_advantage,
    floored_probabilities,
)
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.returns import td_lambda
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import Network, TrainableNetwork

OTHERS = "others"  # what the others do, one-hot, as the critic sees it


class Coma(MultiAgent):
    """Improves the policy of each agent by the value of its action beside the mean of its other actions."""

    reads = ("obs", "next_obs", "action", "reward", "discount", "terminated", "truncated", "last")
    on_policy: ClassVar[bool] = True
    learns_across_rows = True
    actions, other_algorithms = "discrete", "mappo, maddpg or masac"
    acting_network = "actor"

    class Config(MultiAgent.Config):
        actor: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        critic: Any = part(
            "model",
            "the network of the values of each action, while the others do what they did",
            shared="model",
            default=DEFAULT_MODEL,
        )
        td_lambda: float = param(
            0.8, "1: targets sum all rewards; 0: they rely on the next value", ge=0, le=1
        )
        critic_epochs: int = param(
            4, "times that the critic learns from each row, before the policy does", ge=1
        )
        minibatch_size: int = param(256, "rows of one gradient step of the critic", ge=1)
        epsilon: Scheduled = scheduled(
            {"start": 0.5, "end": 0.02, "env_steps": 100_000},
            "share of uniformly random actions in the policy, when it collects and when it learns",
            ge=0,
            le=1,
        )
        entropy_weight: Scheduled = scheduled(
            0.0, "weight of the policy's entropy in the loss", ge=0
        )
        target: TargetRule = follows("how the target critic follows", every_iters=10)
        lr: Scheduled = scheduled(5e-4, "learning rate of the actor", ge=0)
        critic_lr: Scheduled = scheduled(5e-4, "learning rate of the critic", ge=0)
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )

    def setup(self) -> None:
        if self.explore:
            what = "coma learns from the probabilities of its actions, which exploring steps change"
            raise UnsoundError(
                what, "leave out `explore`; `epsilon` is its exploration", "policy.explore"
            )

    def networks(self) -> dict[str, Net]:
        n, seen = self.action_size, {"obs": self.own_obs}
        others = Column("float32", (self.agents.count * n,))
        inputs: Inputs = {STATE: self.agents.state, **seen, OTHERS: others}
        target = self.config.target
        critic = Net(self.model("critic"), inputs, {"q": LinearHead(n)}, target=target)
        heads = {"logits": LinearHead(n, 0.01)}
        return {"actor": Net(self.model("actor"), seen, heads, masked="logits"), "critic": critic}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [draw_floored("logits", "epsilon")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [greedy("logits")]

    def collect_columns(self) -> Schema:
        return {"action": self.action}

    class Learn(MultiAgentLearnMode):
        """The critic learns TD(lambda) returns, and then the actor takes one step with its advantages."""

        actor: TrainableNetwork
        critic: TrainableNetwork
        critic_target: Network
        policy: Coma

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c = self.config
            alive, actions = self.alive(b.obs), self.one_hot(b.action, b.obs)
            b.add(target=self.targets(b, actions), actions=actions)
            names, losses = ["obs", "action", "actions", "target"], []
            for _ in range(c.critic_epochs):
                order = self.rng.permutation(b.rows_of_group)
                pieces = b.minibatches(names, order, c.minibatch_size)
                losses += [self.descend_critic(m) for m in pieces]
            p = self.probabilities(b.obs)
            with torch.no_grad():
                q = self.q(self.critic, b.obs, actions)
                advantage = counterfactual_advantage(q, p, b.action.long())
            logp = p.clamp(min=1e-12).log()
            policy_loss = -self.mean_where(alive, chosen(logp, b.action.long()) * advantage * alive)
            entropy = self.mean_where(alive, -(p * logp).sum(-1) * alive)
            norm = self.actor.descend(policy_loss - self.now.entropy_weight * entropy, self.now.lr)
            return {
                "policy_loss": policy_loss,
                "critic_loss": torch.stack(losses).mean(),
                "q": self.mean_where(alive, chosen(q, b.action.long()) * alive),
                "advantage": self.mean_where(alive, advantage.abs() * alive),
                "entropy": entropy,
                "grad_norm": norm,
            }

        def descend_critic(self, b: LearnBatch) -> Tensor:
            """Do one gradient step for the critic towards its targets; return its loss."""
            alive = self.alive(b.obs)
            q_t = chosen(self.q(self.critic, b.obs, b.actions), b.action.long())
            loss: Tensor = self.mean_where(alive, (q_t - b.target).square() * alive)
            self.critic.descend(loss, self.now.critic_lr)
            return loss.detach()

        def targets(self, b: LearnBatch, actions: Tensor) -> Tensor:
            """TD(lambda) returns (B, N) of the target critic's values of what agents did.

            Where the next row is not this one's successor, the next actions are drawn from the policy.
            """
            cut_t = b.array("last") | b.array("terminated") | b.array("truncated")
            cuts = self.tensor(np.flatnonzero(cut_t))
            with torch.no_grad():
                q_t = chosen(self.q(self.critic_target, b.obs, actions), b.action.long())
                q_tp1 = q_t.roll(-1, 0)
                p = self.probabilities(b.next_obs)
                drawn = drawn_from(p, self.uniform(*p.shape[:-1]))
                next_obs = {leaf: x[cuts] for leaf, x in b.next_obs.items()}
                next_actions = self.one_hot(drawn[cuts], next_obs)
                q_cut = self.q(self.critic_target, next_obs, next_actions)
                q_tp1[cuts] = chosen(q_cut, drawn[cuts])
            v_tp1, r_t, discount_t = to_numpy(q_tp1), b.array("reward"), b.array("discount")
            columns = [
                td_lambda(r_t, discount_t, v_tp1[:, k], cut_t, self.config.td_lambda)
                for k in range(self.policy.agents.count)
            ]
            found: Tensor = self.tensor(np.stack(columns, 1).astype(np.float32))
            return found

        def probabilities(self, obs: Mapping[str, Any]) -> Tensor:
            """The probabilities (B, N, n) with which agents collect."""
            return floored_probabilities(self.actor(self.own(obs))["logits"], self.now.epsilon)

        def one_hot(self, action: Tensor, obs: Mapping[str, Any]) -> Tensor:
            """Actions (B, N) as the critic sees them (B, N, n); those of absent agents are zeros."""
            encoded = functional.one_hot(action.long(), self.policy.action_size).float()
            found: Tensor = encoded * self.alive(obs).unsqueeze(-1)
            return found

        def q(self, network: Network, obs: Mapping[str, Any], actions: Tensor) -> Tensor:
            """The values (B, N, n) of what each agent could do while the others do these actions."""
            found: Tensor = network(**self.critic_inputs(obs, actions))["q"]
            return found

        def critic_inputs(self, obs: Mapping[str, Any], actions: Tensor) -> dict[str, Any]:
            """What the critic sees for each agent."""
            own, state = self.own(obs), self.state_of(obs)
            seen = {leaf: x for leaf, x in own.items() if leaf in self.critic_leaves}
            each = state.unsqueeze(-2).expand(*actions.shape[:-1], -1)
            return {STATE: each, "obs": seen, OTHERS: actions_of_others(actions)}

        @property
        def critic_leaves(self) -> set[str]:
            """The leaves of an agent's observation that the critic sees: all but the action mask."""
            return set(self.policy.own_obs.columns) - {"action_mask"}

        def observed_inputs(self, net: Net, b: LearnBatch) -> dict[str, Any]:
            if OTHERS not in net.inputs:
                return super().observed_inputs(net, b)
            seen = self.critic_inputs(b.obs, b.actions)
            acts = self.alive(b.obs) != 0
            obs = {leaf: x[acts] for leaf, x in seen["obs"].items()}
            return {STATE: seen[STATE][acts], "obs": obs, OTHERS: seen[OTHERS][acts]}


def drawn_from(p: Tensor, uniform: Tensor) -> Tensor:
    """Actions (…) drawn from probabilities (…, n) by numbers (…) from [0, 1)."""
    passed = p.cumsum(-1)[..., :-1] <= uniform.unsqueeze(-1) * p.sum(-1, keepdim=True)
    return passed.sum(-1)


def draw_floored(head: str, setting: str) -> ActingStep:
    """Draw from softmax(scores), or with the probability of the setting uniformly from the allowed actions."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        logits = columns[head]
        drawn, _ = sample_categorical(logits, acting.rng)
        uniform = np.where(logits > FORBIDDEN, np.float32(0), np.float32(FORBIDDEN))
        random, _ = sample_categorical(uniform, acting.rng)
        explores = acting.rng.random(len(logits)) < acting.settings[setting]
        columns["action"] = np.where(explores, random, drawn)

    return step
