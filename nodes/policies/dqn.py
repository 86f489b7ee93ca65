"""DQN (Mnih et al. 2015), with double Q-learning, dueling heads and n-step returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, epsilon_greedy, greedy
from flowrl.nodes.algorithm import Algorithm, Net, TargetRule, follows
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import action_values
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork


class Dqn(Algorithm):
    """Learns the value of each of a few actions, and takes the best one."""

    actions, other_algorithms = "discrete", "ppo, sac or td3"
    acting_network = "q"

    class Config(Algorithm.Config):
        model: Any = part("model", "the network of Q(s, ·)", shared="model", default="auto")
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        double: bool = param(
            True, "the online network chooses the next action, the target network evaluates it"
        )
        dueling: bool = param(True, "Q as the state's value plus each action's advantage")
        loss: Literal["huber", "mse"] = param("huber", "loss of the temporal-difference error")
        lr: Scheduled = scheduled(1e-3, "learning rate", gt=0)
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        target: TargetRule = follows("how the target network follows", every_iters=100)
        epsilon: Scheduled = scheduled(
            {"start": 0.95, "end": 0.1, "env_steps": 10_000, "shape": "exponential"},
            "share of random actions when collecting",
            ge=0,
            le=1,
        )

    def networks(self) -> dict[str, Net]:
        c = self.config
        heads = {"q": action_values(self.action_size, c.dueling)}
        return {"q": Net(self.model(), {"obs": self.obs}, heads, target=c.target, masked="q")}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [epsilon_greedy("q")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [greedy("q")]

    class Learn(NetworkLearnMode):
        """Moves Q(s_t, a_t) towards r_t + discount_t * Q_target(s_tp1, a_tp1)."""

        q: TrainableNetwork
        q_target: Network

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            with torch.no_grad():
                q_tp1 = self.q_target(b.next_obs)["q"]
                chooser_tp1 = self.q(b.next_obs)["q"] if self.config.double else q_tp1
                target_t = losses.double_q_target(b.reward, b.discount, q_tp1, chooser_tp1)
            q_t = losses.chosen(self.q(b.obs)["q"], b.action)
            error = losses.error_loss(self.config.loss, q_t, target_t)
            loss = b.weighted_mean(error)
            norm = self.q.descend(loss, self.now.lr)
            priority = (target_t - q_t.detach()).abs()
            return {"loss": loss, "q": q_t.mean(), "grad_norm": norm, "priority": priority}
