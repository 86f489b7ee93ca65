"""FQF (Yang et al. 2019): IQN at fractions that a network proposes, where they approximate the returns best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.batch import Array
from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, Columns, NetworkActMode, exportable
from flowrl.nodes.algorithm import Net
from flowrl.nodes.configured_parts import configured_part
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import Head, ImplicitHead, SharesHead, midpoints
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.value_based import ValueBased, ValueBasedLearnMode

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainablePart


class Fqf(ValueBased):
    """Learns the quantile function of each action's return, and the fractions at which to evaluate it."""

    class Config(ValueBased.Config):
        double: bool = param(
            False, "the online network chooses the next action, the target network evaluates it"
        )
        dueling: bool = param(False, "quantiles as that of the state plus that of each action")
        cosines: int = param(64, "cosines of the fraction, of which its embedding is made", ge=1)
        fractions: int = param(32, "intervals between the proposed fractions", ge=2)
        fraction_lr: Scheduled = scheduled(2.5e-9, "learning rate of the proposals", gt=0)
        fraction_optimiser: Any = part(
            "optimiser", "the optimiser of the proposals", default={"type": "rmsprop", "eps": 1e-5}
        )
        fraction_entropy: float = param(
            0.0, "weight of the entropy of the intervals, which keeps fractions apart", ge=0
        )

    def head(self) -> Head:
        return ImplicitHead(self.action_size, self.config.cosines, self.config.dueling, "shares")

    def networks(self) -> dict[str, Net]:
        model = self.model().for_obs(self.obs)
        if not getattr(model, "shares_trunk", True):
            what = (
                "fractions are proposed from the features of the quantiles, and no layer is shared"
            )
            raise UnsoundError(what, "leave out `shared: false`", "model")
        heads: dict[str, Head] = {"shares": SharesHead(self.config.fractions), "q": self.head()}
        return {"q": Net(model, {"obs": self.obs}, heads, target=self.config.target, masked="q")}

    def score_steps(self) -> Sequence[ActingStep]:
        return [exportable(weighted_quantiles, lambda columns, obs: weigh_quantiles(columns))]

    class Learn(ValueBasedLearnMode):
        """One gradient step for the quantiles, and one for the proposals."""

        proposals: TrainablePart

        def begin(self) -> None:
            from flowrl.nodes.models.networks import TrainablePart

            optimiser = configured_part(self.config, "fraction_optimiser")
            self.proposals = TrainablePart(self.q, "shares", optimiser)

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            with torch.no_grad():
                next_heads = self.q_target(b.next_obs)
                chooser = self.q(b.next_obs) if self.config.double else next_heads
                best = self.best_actions(mean_returns(chooser), b.next_obs)
                z_best = losses.chosen_each(next_heads["q"].transpose(1, 2), best)
                target_t = b.reward.unsqueeze(1) + b.discount.unsqueeze(1) * z_best
            heads = self.q(b.obs)
            shares = heads["shares"]
            z_t = losses.chosen_each(heads["q"].transpose(1, 2), b.action)  # at the midpoints
            fraction_slope, entropy = self.propose(b, shares, z_t.detach())
            tau = midpoints(shares.detach())
            loss = b.weighted_mean(losses.quantile_huber(z_t, target_t, tau))
            norm = self.q.descend(loss, self.now.lr)
            q_t = (shares.detach() * z_t.detach()).sum(-1)
            return {
                "loss": loss,
                "fraction_slope": fraction_slope,
                "fraction_entropy": entropy,
                "q": q_t.mean(),
                "grad_norm": norm,
                "priority": (target_t.mean(1) - q_t).abs(),
            }

        def propose(self, b: LearnBatch, shares: Any, z_mid: Any) -> tuple[Any, Any]:
            """Move the proposed fractions to where their quantiles approximate the returns best (proposition 1)."""
            tau = shares.cumsum(-1)[:, :-1]  # (B, fractions - 1)
            with torch.no_grad():
                z = self.q(b.obs, tau=tau)["q"]
                z_tau = losses.chosen_each(z.transpose(1, 2), b.action)
                gradient = losses.fraction_gradient(z_tau, z_mid)
            entropy = -torch.special.xlogy(shares, shares).sum(-1).mean()
            loss = b.weighted_mean((gradient * tau).sum(-1))
            total = loss - self.config.fraction_entropy * entropy
            self.proposals.descend(total, self.now.fraction_lr)
            return gradient.abs().mean(), entropy


def mean_returns(heads: Any) -> Any:
    """The mean returns (B, n): quantiles (B, fractions, n), weighted by their intervals (equation 4)."""
    return (heads["shares"][..., None] * heads["q"]).sum(1)


def weigh_quantiles(columns: dict[str, Any]) -> None:
    """Turn quantiles, as arrays or tensors, into mean returns (B, n)."""
    columns["q"] = mean_returns(columns)


def weighted_quantiles(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
    """Turn quantiles into mean returns (B, n)."""
    weigh_quantiles(columns)
