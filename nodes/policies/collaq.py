"""CollaQ (Zhang et al. 2020): QMIX with values of what an agent could do alone, and of what others add."""

from __future__ import annotations

from typing import Any

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.algorithm import Net
from flowrl.nodes.losses import chosen
from flowrl.nodes.models.collaborative import EXCESS, CollaborativeModel
from flowrl.nodes.models.heads import action_values
from flowrl.nodes.models.model import Model
from flowrl.nodes.multi_agent import OWN
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.qmix import Qmix


class Collaq(Qmix):
    """Learns Q_i(o_i) = Q_alone(o_i without others) + Q_together(o_i), where the second part is 0 without others."""

    class Config(Qmix.Config):
        own_entries: list[list[int]] = param(
            ...,
            "ranges [begin, end) of the entries of each agent's observation that do not tell about other agents",
            min_length=1,
        )
        excess_weight: float = param(
            1.0, "weight of the loss by which the second part is 0 without others", ge=0
        )

    def setup(self) -> None:
        super().setup()
        if self.model().memory_columns():
            what = "collaq has two networks of each agent, and the model is recurrent"
            raise UnsoundError(what, "take an mlp, or the policy qmix", "model")

    def value_net(self, model: Model) -> Net:
        two = CollaborativeModel(model, OWN, self._own_entries())
        head = action_values(self.action_size, self.config.dueling)
        net = super().value_net(two)
        return Net(two, net.inputs, {"q": head, EXCESS: head}, target=net.target, masked="q")

    def acting_heads(self) -> tuple[str, ...]:
        return ("q",)

    def _own_entries(self) -> Array:
        """1 for each entry that does not tell about others."""
        ranges = self.config.own_entries
        found = self.entries_of_own(ranges, "own_entries", "take the policy qmix")
        if found.all():
            what = f"all {len(found)} entries of an observation are the agent's own, so the parts would be alike"
            raise UnsoundError(
                what, "name those that do not tell about others, or take qmix", "own_entries"
            )
        return found

    class Learn(Qmix.Learn):
        """Adds the square of what the second part adds where there is nobody else."""

        def further_losses(self, heads: Any, b: LearnBatch) -> dict[str, Any]:
            acts = self.alive(b.obs)
            excess = (chosen(heads[EXCESS], b.action) * acts).square().sum(-1) / acts.sum(-1).clamp(
                min=1
            )
            return {"excess_loss": self.config.excess_weight * self.mean_loss(b, excess)}
