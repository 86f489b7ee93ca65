"""Trajectory-ranked reward extrapolation (Brown et al. 2019): a reward learned from which episodes are better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.algorithm import Net
from flowrl.nodes.imitation import ImitationModel
from flowrl.nodes.lazy import tensor
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.reward_steps import StepBatch, StepColumns

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork

RANKED: Schema = {"reward": Column("float32"), "last": Column("bool")}


class Trex(ImitationModel):
    """Learns a reward by which an episode with a higher return also has a higher sum.

    Only the order of the returns of the expert's episodes counts, not their sizes. So the episodes need not be good,
    and the agent may become better than the best of them.
    """

    reads = ("obs",)

    class Config(ImitationModel.Config):
        model: Any = part(
            "model", "the network of the reward", default={"type": "auto", "hidden": [64, 64]}
        )
        normalise_bonus: bool = param(True, "divide the bonus by its running standard deviation")
        batch_size: int = param(16, "pairs of episodes in each gradient step", ge=1)
        newest_rows: Literal[0] = param(0, "none of the agent's steps: clips are of the expert's")
        clip_steps: int = param(50, "steps of the clips of episodes that are compared", ge=1)

    reward_network: TrainableNetwork

    @classmethod
    def networks(cls, config: Any, steps: StepColumns) -> dict[str, Net]:
        return {
            "reward_network": Net(cls.model_of(config), {"obs": steps.obs}, {"value": ScalarHead()})
        }

    @classmethod
    def expert_columns(cls, agent: StepColumns) -> Schema:
        return {**super().expert_columns(agent), **RANKED}

    def begin(self) -> None:
        # The places of the first rows of the expert's episodes.
        self.first_row = np.zeros(0, np.int64)
        self.length = np.zeros(0, np.int64)
        self.returns = np.zeros(0, np.float32)
        self.places = np.zeros(0, np.int64)  # of the expert's rows, the oldest first

    def keep_expert(self, expert: Batch) -> None:
        super().keep_expert(expert)
        if not len(expert) and not self.has_ranking:  # a dataset gives all rows at once
            rows, episodes = len(self.expert_steps), len(self.returns)
            raise ValueError(
                f"{self.ctx.key}: the {rows} rows of the expert have {episodes} whole episodes; trex learns from which "
                "of several is better, so give it more rows, and let it keep them (`expert_rows`)"
            )
        if len(expert):
            self.first_row, self.length, self.returns = episodes_of(self.expert_steps.all())
            self.places = self.expert_steps.places()
            if len(self.returns) > 1 and not self.has_ranking:
                raise ValueError(
                    f"{self.ctx.key}: the expert has {len(self.returns)} episodes with one and the same return; "
                    "trex learns from which are better, so give episodes of different returns"
                )

    @property
    def has_ranking(self) -> bool:
        """Whether an episode is better than another."""
        return len(np.unique(self.returns)) > 1

    def learn(self, arrays: Mapping[str, Array]) -> None:
        if self.has_ranking:
            self.update()

    def minibatch(self) -> StepBatch:
        """Draw clips of two episodes of each pair; `better` says whether the first one is the better one."""
        pairs, clip = self.config.batch_size, min(self.config.clip_steps, int(self.length.min()))
        one, other = self.draw_pairs(pairs)
        chosen = np.concatenate([one, other])
        offset = self.rng.integers(self.length[chosen] - clip + 1)
        rows = (self.first_row[chosen] + offset)[:, None] + np.arange(clip)
        b = self.as_steps(self.expert_steps.take(self.places[rows.reshape(-1)]))
        b.add(better=tensor((self.returns[one] > self.returns[other]).astype(np.float32)))
        return b

    def draw_pairs(self, pairs: int) -> tuple[Array, Array]:
        """Draw pairs of episodes with different returns: the second is one of those that differ from the first."""
        order = np.argsort(self.returns, kind="stable")
        ranked = self.returns[order]
        one = self.rng.integers(len(order), size=pairs)
        low = np.searchsorted(ranked, self.returns[one], "left")
        same = np.searchsorted(ranked, self.returns[one], "right") - low
        other = self.rng.integers(len(order) - same)
        return one, order[np.where(other < low, other, other + same)]

    def bonus(self, b: StepBatch) -> Any:
        return self.reward_network(b.obs)["value"]

    def train(self, b: StepBatch) -> dict[str, Any]:
        """One step down -log of the likelihood of the rankings: equation 2."""
        one, other = self.bonus(b).view(2, len(b.better), -1).sum(2)
        loss = losses.ranking_loss(one, other, b.better)
        agreed = ((one > other) == (b.better > 0)).float().mean()
        norm = self.reward_network.descend(loss, self.lr)
        return {"ranking_loss": loss.detach(), "agreed": agreed, "grad_norm": norm}


def episodes_of(rows: dict[str, Array]) -> tuple[Array, Array, Array]:
    """The first rows, lengths and returns of episodes; rows are in the order of time, and `last` ends an episode."""
    ends = np.flatnonzero(rows["last"])
    if not len(ends):
        return ends, ends, np.zeros(0, np.float32)
    first = np.concatenate([[0], ends[:-1] + 1])
    rewards = rows["reward"][: ends[-1] + 1].astype(np.float64)
    return first, ends + 1 - first, np.add.reduceat(rewards, first).astype(np.float32)
