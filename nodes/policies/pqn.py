"""PQN (Gallici et al. 2024): Q-learning on new data only, with Q(lambda) and normalised layers, without a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, epsilon_greedy, greedy
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.returns import q_lambda
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowrl.nodes.models.networks import TrainableNetwork

DEFAULT_MODEL = {"type": "auto", "hidden": [128, 128], "norm": True}


class Pqn(Algorithm):
    """Learns action values from the rows of many envs, without a replay buffer and a target network."""

    actions, other_algorithms = "discrete", "ppo"
    acting_network, on_policy, learns_across_rows = "q", True, True
    reads = (
        "obs", "next_obs", "action", "reward", "discount", "terminated", "truncated", "last",
    )  # fmt: skip

    class Config(Algorithm.Config):
        model: Any = part("model", "the network of Q(s, ·)", shared="model", default=DEFAULT_MODEL)
        q_lambda: float = param(
            0.65, "1: targets sum all rewards; 0: they rely on the next value", ge=0, le=1
        )
        epochs: int = param(4, "times that each row is learned from", ge=1)
        minibatch_size: int = param(128, "rows of one gradient step", ge=1)
        lr: Scheduled = scheduled(5e-4, "learning rate", ge=0)
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        epsilon: Scheduled = scheduled(
            {"start": 1.0, "end": 0.05, "env_steps": 50_000},
            "share of random actions when collecting",
            ge=0,
            le=1,
        )

    def networks(self) -> dict[str, Net]:
        heads = {"q": LinearHead(self.action_size)}
        return {"q": Net(self.model(), {"obs": self.obs}, heads, masked="q")}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [epsilon_greedy("q")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [greedy("q")]

    class Learn(NetworkLearnMode):
        q: TrainableNetwork

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c, found = self.config, []
            b.add(target=self.targets(b))
            for _ in range(c.epochs):
                order = self.rng.permutation(b.rows_of_group)
                for m in b.minibatches(("obs", "action", "target"), order, c.minibatch_size):
                    q_t = losses.chosen(self.q(m.obs)["q"], m.action)
                    loss = 0.5 * (q_t - m.target).square().mean()
                    norm = self.q.descend(loss, self.now.lr)
                    found.append(torch.stack([loss.detach(), q_t.detach().mean(), norm]))
            means = torch.stack(found).mean(0)
            return dict(zip(("loss", "q", "grad_norm"), means, strict=True))

        def targets(self, b: LearnBatch) -> Any:
            """The Q(lambda) returns of all rows (N,)."""
            with torch.no_grad():
                v_tp1 = self.q(b.next_obs)["q"].amax(-1)
            reward, discount = b.array("reward"), b.array("discount")
            cut_t = b.array("last") | b.array("terminated") | b.array("truncated")
            returns = q_lambda(reward, discount, to_numpy(v_tp1), cut_t, self.config.q_lambda)
            return self.tensor(returns)
