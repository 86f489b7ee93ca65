"""MADDPG (Lowe et al. 2017): deterministic actors of several agents, with critics that see what all of them do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowrl.nodes.algorithm import Net
from flowrl.nodes.central_critic import JointCritic, JointCriticLearnMode
from flowrl.nodes.differentiable_actions import DeterministicActors
from flowrl.nodes.lazy import torch
from flowrl.nodes.network_learn_mode import LearnBatch

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import Network


class Maddpg(DeterministicActors, JointCritic):
    """Learns a deterministic policy of each agent from replayed steps.

    Discrete actions are drawn with Gumbel noise, which gives them a gradient.
    """

    class Config(DeterministicActors.Config, JointCritic.Config):
        pass

    def networks(self) -> dict[str, Net]:
        target, choice = self.config.target, self.choice
        own = {"obs": self.own_obs}
        actor = Net(self.model("actor"), own, choice.heads, target=target, masked=choice.masked)
        heads = {"value": self.value_head()}
        critic = Net(self.model("critic"), self.critic_inputs, heads, target=target)
        return {"actor": actor, "critic": critic}

    class Learn(JointCriticLearnMode):
        """One gradient step for the critic, and one for the actor."""

        actor_target: Network
        policy: Maddpg

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            taken = self.policy.choice.taken(b)
            b.add(actions=self.joint(taken, b.obs))
            q_t = self.value(self.critic, self.state_of(b.obs), b.actions)
            found = self.learn_critic(b, q_t.unsqueeze(1), self.target_values(b))
            return {**found, **self.learn_actor(b, taken)}

        def target_values(self, b: LearnBatch) -> Tensor:
            """r_t + discount_t Q_target(s_tp1, a_tp1), by what the target actors do next: (B, V), equation 6."""
            with torch.no_grad():
                own, _ = self.actions_of(self.actor_target, b.next_obs)
                joint = self.joint(own, b.next_obs)
                q_tp1 = self.value(self.critic_target, self.state_of(b.next_obs), joint)
                reward, discount = self.tensor(self.rewards(b)), self.tensor(self.discounts(b))
                found: Tensor = reward + discount * q_tp1
            return found

        def learn_actor(self, b: LearnBatch, taken: Tensor) -> dict[str, Any]:
            """Increase Q where each agent acts anew and the others do what they did: equation 5."""
            alive = self.alive(b.obs)
            own, squares = self.actions_of(self.actor, b.obs)
            q = self.value_of_own_action(b, taken, own)
            loss = -self.mean_where(alive, q * alive)
            loss = loss + self.config.regularisation * self.mean_where(alive, squares * alive)
            self.actor.descend(loss, self.now.lr)
            return {"actor_loss": loss}

        def actions_of(self, actor: Network, obs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
            """What agents do now (B, N, n), and the mean squares (B, N) of the actor's outputs."""
            choice = self.policy.choice
            outputs = actor(self.own(obs))[choice.head]
            return choice.of(outputs, choice.noise(self, outputs)), choice.squares(outputs)
