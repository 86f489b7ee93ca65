"""Reward models that learn from an expert, whose rows arrive at an input of their own.

A subclass of `ImitationModel` finds the expert's steps of a minibatch in `b.expert`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import param
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.ports import In
from flowrl.nodes.recent_rows import RecentRows
from flowrl.nodes.reward_model import LearnedRewardModel, RewardModel
from flowrl.nodes.reward_steps import StepBatch, StepColumns
from flowrl.nodes.schedules import Scheduled, scheduled


class ExpertRewardModel(RewardModel):
    """A reward model with an input for an expert: demonstrations, or the rows of a collector."""

    expert = In(
        "samples",
        optional=True,
        about="the expert's rows: demonstrations, or those of a collector",
        unlike="data",
    )

    class Config(RewardModel.Config):
        reward_weight: Scheduled = scheduled(
            0.0, "factor of the reward that arrives; 0: the bonus replaces it"
        )
        expert_rows: int = param(100_000, "the newest so many steps of the expert are kept", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        facts = super().describe(config, surroundings)
        name = cls.type_name()
        if "expert" not in surroundings.inputs:
            what = f"{name} learns from an expert, and nothing is connected to its input 'expert'"
            raise UnsoundError(what, f"connect demonstrations: `demos -> {name}.expert`")
        given = surroundings.inputs["expert"] or {}
        steps = cls.expert_columns(StepColumns.of(name, surroundings.inputs["data"] or {}))
        needs = {n: _unroll_like(c, given.get(n)) for n, c in steps.items()}
        return replace(facts, needs={"expert": needs})

    @classmethod
    def expert_columns(cls, agent: StepColumns) -> Schema:
        """The columns that the expert's rows must have, given those of the agent's steps."""
        return {n: c for name in cls.reads for n, c in agent.under(name).items()}

    def make_parts(self, steps: StepColumns) -> None:
        super().make_parts(steps)
        self.expert_steps = RecentRows(self.config.expert_rows)

    def fire(self, data: Batch, expert: Batch | None) -> Batch:  # type: ignore[override]
        """Return the rows with the bonus in their reward; keep the expert's rows."""
        if expert is not None:
            self.keep_expert(expert)
        return self.rewarded(data)

    def keep_expert(self, expert: Batch) -> None:
        """Add steps of the expert."""
        if self.steps is None:
            self._build(expert.schema)
        self.expert_steps.add(self.expert_arrays(expert))

    def expert_arrays(self, expert: Batch) -> dict[str, Array]:
        """The columns that are kept of the expert, one row for each step."""
        assert self.steps is not None
        needed = self.expert_columns(self.steps).items()
        return {n: expert[n].reshape(-1, *c.shape) for n, c in needed}


class ImitationModel(ExpertRewardModel, LearnedRewardModel):
    """A reward model with networks that learns from an expert."""

    class Config(ExpertRewardModel.Config, LearnedRewardModel.Config):
        normalise_bonus: bool = param(False, "divide the bonus by its running standard deviation")

    def keep_expert(self, expert: Batch) -> None:
        """Add steps of the expert."""
        super().keep_expert(expert)
        if self.obs_moments is not None and len(expert):
            self.obs_moments.update(self.expert_arrays(expert))

    def learn(self, arrays: Mapping[str, Array]) -> None:
        if len(self.expert_steps):  # not before the expert's rows have arrived, as in a warm-up
            super().learn(arrays)

    def minibatch(self) -> StepBatch:
        """Draw steps of the agent, and as many of the expert."""
        expert = self.as_steps(self.drawn(self.expert_steps))
        return self.as_steps(self.drawn(self.recent), expert)


def _unroll_like(step: Column, given: Column | None) -> Column:
    """The column of unrolls of these steps, if unrolls are given; otherwise that of the steps."""
    is_unroll = given is not None and given.shape[1:] == step.shape and given.shape != step.shape
    return given if given is not None and is_unroll else step
