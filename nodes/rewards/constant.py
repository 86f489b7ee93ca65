"""A constant reward for every row, such as those of SQIL (Reddy et al. 2020)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from flowrl.nodes.reward_model import RewardModel
from flowrl.nodes.reward_steps import StepBatch
from flowrl.nodes.schedules import Scheduled, scheduled


class Constant(RewardModel):
    """Gives every row the reward `weight`. With `reward_weight: 1`, it is added to the reward that arrives."""

    reads = ("reward",)

    class Config(RewardModel.Config):
        reward_weight: Scheduled = scheduled(
            0.0, "factor of the reward that arrives; 0: the constant replaces it"
        )
        may_leave_no_reward: ClassVar[bool] = True  # of the agent's rows, beside those of an expert

    def bonus(self, b: StepBatch) -> Any:
        return np.ones(len(b.reward), np.float32)
