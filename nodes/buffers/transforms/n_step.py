"""n-step returns, computed when rows are drawn. The stored rows have one reward each."""

from __future__ import annotations

import numpy as np

from flowrl.core.batch import Schema
from flowrl.core.config import param
from flowrl.core.node import UnsoundError
from flowrl.nodes.buffers.transforms.transform import (
    DiscountingConfig,
    SampledRows,
    Transform,
    policy_gamma,
)
from flowrl.nodes.origin import ENV_COLUMN, OFFSET_COLUMN
from flowrl.nodes.returns import bootstrap_discount

REQUIRED_COLUMNS = ("reward", "terminated", "truncated", "last", "discount")


class NStep(Transform):
    """Computes the same values as the n-step windows of a collector (Sutton & Barto 2018, equation 7.1).

    A window ends with its episode: truncation bootstraps, termination does not. If later rows of the episode have not
    arrived yet, the window bootstraps at the last row that is held.
    """

    sums_rewards = True

    class Config(DiscountingConfig):
        steps: int = param(..., "rewards that are summed before the target bootstraps", ge=1)
        tokens_apart: bool = param(
            False, "accept rows without origin columns; windows then end with their token"
        )

    def check(self, schema: Schema) -> None:
        policy_gamma("n_step", self.config.policy)
        missing = [name for name in REQUIRED_COLUMNS if name not in schema]
        if missing or not _next_obs_columns(schema):
            name = missing[0] if missing else "next_obs"
            raise UnsoundError(
                f"n_step needs the column '{name}'", "connect a collector", "transforms"
            )

        # Rows can be followed by their origin columns, or because tokens hold whole episodes.
        followed = ENV_COLUMN in schema or OFFSET_COLUMN in schema
        if followed and self.config.tokens_apart:
            what = "`tokens_apart` is only for rows without origin columns"
            raise UnsoundError(what, "remove it", "transforms")
        if not followed and not self.config.tokens_apart:
            raise UnsoundError(
                "n_step follows rows from token to token, but these rows have no origin columns",
                "write `origin: true` at the collector, or `tokens_apart: true` here",
                "transforms",
            )

    def apply(self, rows: SampledRows) -> None:
        """Sum rewards, and take the next observation and the flags from the end of the window."""
        steps, gamma = self.config.steps, policy_gamma("n_step", self.config.policy)
        numbers, exists = rows.segments.follow(rows.numbers, steps)  # (W, steps)
        reward = rows.stored("reward", numbers)
        total = np.zeros(len(numbers))
        for j in range(steps):  # in the order in which collectors sum, for the same bits
            total += gamma**j * exists[:, j] * reward[:, j]
        count = exists.sum(1)
        end = numbers[np.arange(len(numbers)), count - 1]
        rows.take_from([*_next_obs_columns(rows.names), "terminated", "truncated"], end)
        rows["reward"] = total.astype(reward.dtype)
        rows["discount"] = bootstrap_discount(gamma, rows["terminated"], count)


def _next_obs_columns(names: Schema | list[str]) -> list[str]:
    return [name for name in names if name.split("/")[0] == "next_obs"]
