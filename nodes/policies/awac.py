"""AWAC (Nair et al. 2020): an actor-critic that learns from a dataset, and can go on with steps of its own."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.advantage_weighted import AdvantageWeighted, AdvantageWeightedLearnMode
from flowrl.nodes.distributions import MultiCategorical
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.sampling import LOG_STD_LIMITS
from flowrl.nodes.network_learn_mode import LearnBatch


class Awac(AdvantageWeighted):
    """Imitates actions by how far their value exceeds that of the policy's own ones."""

    class Config(AdvantageWeighted.Config):
        temperature: float = param(
            1.0, "the larger, the less an action's weight depends on its advantage (lambda)", gt=0
        )

    def setup(self) -> None:
        super().setup()
        if isinstance(self.distribution, MultiCategorical):
            what = f"{self.name} chooses one of n actions, or real-valued ones; the env takes {self.action}"
            raise UnsoundError(what, "try iql", "policy")

    class Learn(AdvantageWeightedLearnMode):
        """One gradient step for the critics and the actor each."""

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            with torch.no_grad():
                v_tp1 = self.q_min(self.critic_target, b.next_obs, self.draw(b.next_obs))
            critic = self.learn_critic(b, v_tp1)
            with torch.no_grad():
                q_t = self.q_min(self.critic, b.obs, self.actions(b))
                advantage = q_t - self.q_min(self.critic, b.obs, self.draw(b.obs))
            # exp(A / lambda) / Z of equation 13, with the mean over the rows as Z
            weight = self.over_group(self.weights_of_rows, advantage)
            return {"advantage": advantage.mean(), **self.learn_actor(b, weight), **critic}

        def weights_of_rows(self, advantage: Any) -> Any:
            return (advantage / self.config.temperature).softmax(0) * len(advantage)

        def draw(self, obs: Any) -> Any:
            """Actions of the policy, as critics see them."""
            heads = self.actor(obs)
            if "logits" in heads:
                bounds = heads["logits"].softmax(-1).cumsum(-1)[:, :-1]
                return (self.uniform(len(bounds), 1) >= bounds).sum(-1)
            std = heads["log_std"].clamp(*LOG_STD_LIMITS).exp()
            centre = heads["mean"].tanh()
            return (centre + std * self.normal(*centre.shape)).clamp(-1, 1)
