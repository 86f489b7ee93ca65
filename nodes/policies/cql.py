"""Conservative Q-learning (Kumar et al. 2020): SAC on a dataset, whose critics rate actions beyond the data low."""

from __future__ import annotations

import math
from typing import Any

from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.lazy import torch
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.sac import Sac


class Cql(Sac):
    """Learns from a fixed set of steps with real-valued actions."""

    class Config(Sac.Config):
        conservatism: float = param(
            5.0, "weight of the gap between the values of all actions and of the data's", ge=0
        )
        samples: int = param(
            10, "actions of each of three kinds that stand for all actions of an observation", ge=1
        )

    class Learn(Sac.Learn):
        policy: Cql

        def critic_loss(self, b: LearnBatch, alpha: Any) -> tuple[Any, Any, Any]:
            """The loss of SAC, and conservatism (log integral exp Q(s, a) da - Q(s, a_t)): equation 4, CQL(H)."""
            td_loss, q_t, target_t = super().critic_loss(b, alpha)
            action, logp = self.sample_actions(b)
            q = self.critic(obs=repeated(b.obs, action.shape[1]), action=action)["q"]
            soft_maximum = losses.sampled_soft_maximum(q.transpose(1, 2), logp.unsqueeze(1))
            gap = b.weighted_mean((soft_maximum - q_t).sum(1))
            return td_loss + self.config.conservatism * gap, q_t, target_t

        def sample_actions(self, b: LearnBatch) -> tuple[Any, Any]:
            """Actions (B, 3 k, n) and the logarithms of their densities (B, 3 k).

            A third each is drawn uniformly, from the policy here, and from the policy at the next observation.
            """
            k, n = self.config.samples, self.policy.action_size
            shape = (len(b.reward), k, n)
            uniform = 2 * self.uniform(*shape) - 1
            density = torch.full(shape[:2], -n * math.log(2), device=uniform.device)
            with torch.no_grad():
                here, logp_here = self.draw(repeated(b.obs, k))
                after, logp_after = self.draw(repeated(b.next_obs, k))
            return torch.cat([uniform, here, after], 1), torch.cat(
                [density, logp_here, logp_after], 1
            )


def repeated(obs: Any, times: int) -> Any:
    """Observations (B, …) as (B, times, …)."""
    from flowrl.nodes.models.networks import map_values

    return map_values(obs, lambda x: x.unsqueeze(1).expand(-1, times, *x.shape[1:]))
