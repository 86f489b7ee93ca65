"""HAPPO (Kuba et al. 2022): agents with networks of their own, which are improved one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from flowrl.core.batch import Array, Schema
from flowrl.core.config import param
from flowrl.nodes.acting import ActingStep
from flowrl.nodes.algorithm import Net, UnrollRule
from flowrl.nodes.lazy import torch
from flowrl.nodes.multi_agent import AgentNetworksActMode
from flowrl.nodes.multi_agent_losses import next_factor
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.mappo import METRICS, Mappo
from flowrl.nodes.policy import AnyActMode

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import TrainableNetwork


class Happo(Mappo):
    """Improves one agent's policy after another; each counts what those before it have changed."""

    unrolls: ClassVar[UnrollRule] = "never"
    acting_network = "actor_0"

    class Config(Mappo.Config):
        unroll_steps: None = param(None, "none: happo learns from single steps")
        agent_numbers: bool = param(
            False, "each agent observes its number; agents have networks of their own anyway"
        )

    def networks(self) -> dict[str, Net]:
        actors = {actor_name(k): self.actor_net() for k in range(self.agents.count)}
        return {**actors, "critic": self.critic_net()}

    def acting_parts(self) -> Sequence[Any]:
        return [self.agents.count]  # the networks of all agents are alike

    def _act_mode(
        self, steps: Sequence[ActingStep], outputs: Schema, seed: int, explores: bool
    ) -> AnyActMode:
        own = {n: replace(c, shape=c.shape[1:]) for n, c in outputs.items()}
        modes = {
            actor_name(k): self.network_act_mode(steps, own, agent_seed(seed, k), explores)
            for k in range(self.agents.count)
        }
        return AgentNetworksActMode(modes, self.agents, outputs)

    class Learn(Mappo.Learn):
        """In each train iteration, agents learn in a random order, each in several epochs."""

        policy: Happo

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            advantage, target, old_value = self.targets(b)
            factor = torch.ones_like(b.logp[..., 0])
            b.add(advantage=advantage, target=target, old_value=old_value)
            metrics = []
            for agent in self.rng.permutation(self.policy.agents.count).tolist():
                b.add(factor=factor)
                for m in self.minibatches(b, [*self.actor_columns(b), "factor"]):
                    metrics.append(self.descend_agent(agent, m))
                factor = next_factor(factor, self.log_ratio(agent, b))
            names = ["obs", "target", "old_value"]
            value_losses = [self.descend_critic(m) for m in self.minibatches(b, names)]
            policy_loss, *others = torch.stack(metrics).mean(0)
            means = (policy_loss, torch.stack(value_losses).detach().mean(), *others)
            return {**dict(zip(METRICS, means, strict=True)), "lr": self.now.lr}

        def actor_of(self, agent: int) -> TrainableNetwork:
            """The network of an agent."""
            found: TrainableNetwork = getattr(self, actor_name(agent))
            return found

        def heads_of(self, agent: int, b: LearnBatch) -> Mapping[str, Any]:
            """The parameters of an agent's distribution (B, 1, …)."""
            own = {leaf: x[:, agent : agent + 1] for leaf, x in self.own(b.obs).items()}
            found: Mapping[str, Any] = self.actor_of(agent)(own)
            return found

        def rows_of_agent(self, agent: int, b: LearnBatch) -> LearnBatch:
            """What one agent did (B, 1, …)."""
            drawn = self.policy.distribution.drawn
            columns = {n: getattr(b, n)[:, agent : agent + 1] for n in (drawn, "logp")}
            return LearnBatch(None, columns, self.box, self.compute)

        def descend_agent(self, agent: int, b: LearnBatch) -> Tensor:
            """Do one gradient step for an agent, with advantages that count what agents before it changed."""
            own, alive = self.rows_of_agent(agent, b), self.alive(b.obs)[:, agent : agent + 1]
            advantage = b.advantage[:, agent : agent + 1] * b.factor.unsqueeze(-1)
            loss, *metrics = self.policy_loss(self.heads_of(agent, b), own, advantage, alive)
            norm = self.actor_of(agent).descend(loss, self.now.lr)
            return torch.stack([*metrics, norm]).detach()

        def log_ratio(self, agent: int, b: LearnBatch) -> Tensor:
            """log pi_new - log pi_old of what an agent did (B,); 0 where it was absent."""
            own = self.rows_of_agent(agent, b)
            with torch.no_grad():
                logp, _ = self.policy.distribution.logp_entropy(self.heads_of(agent, b), own)
                difference = (logp - own.logp).squeeze(-1) * self.alive(b.obs)[:, agent]
            found: Tensor = difference
            return found

        def weights(self) -> dict[str, Array]:
            net = self.policy.nets[self.policy.acting_network]
            heads = self.policy.acting_heads()
            found: dict[str, Array] = {}
            for agent in range(self.policy.agents.count):
                weights = self.actor_of(agent).weights(
                    lambda name: net.model.is_acting_parameter(heads, name)
                )
                found |= {f"{actor_name(agent)}.{n}": x for n, x in weights.items()}
            return found


def actor_name(agent: int) -> str:
    """The name of an agent's network."""
    return f"actor_{agent}"


def agent_seed(seed: int, agent: int) -> int:
    """A seed for what an agent draws, which is another one for each agent."""
    return (seed * 1_000_003 + agent) % 2**63
