"""REDQ (Chen et al. 2021): SAC with many critics, of which each target takes a random few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.lazy import torch
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.sac import Sac

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network


class Redq(Sac):
    """SAC that learns much from each step, because an ensemble of critics keeps its values unbiased.

    The many critic steps for each env step are the graph's `updates_per_push`.
    """

    class Config(Sac.Config):
        critics: int = param(10, "critics", ge=1)
        target_critics: int = param(2, "critics of which a target takes the minimum", ge=1)
        actor_every_iters: int = param(20, "critic steps for each step of the actor", ge=1)

    def setup(self) -> None:
        c = self.config
        if c.target_critics > c.critics:
            what = f"a target takes {c.target_critics} of {c.critics} critics"
            raise UnsoundError(what, "give more `critics`", "target_critics")

    class Learn(Sac.Learn):
        def learn(self, b: LearnBatch) -> dict[str, Any]:
            if (self.iters + 1) % self.config.actor_every_iters == 0:
                return super().learn(b)
            return self.learn_critic(b, self.log_alpha.value.detach().exp())

        def value(self, critic: Network, obs: Any, action: Any) -> Any:
            """For targets the minimum of a random few critics, for the actor the mean of all (algorithm 1)."""
            q = critic(obs=obs, action=action)["q"]
            if critic is self.critic:
                return q.mean(1)
            order = torch.randperm(q.shape[1], generator=self.generator)
            few = order[: self.config.target_critics].tolist()
            return q[:, few].amin(1)
