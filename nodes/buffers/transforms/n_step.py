"""n-step returns, worked out when rows are drawn: the rows that are stored have one reward each."""

from __future__ import annotations

import numpy as np

from flowrl.core.batch import Schema
from flowrl.core.config import param
from flowrl.core.node import UnsoundError
from flowrl.nodes.buffers.transforms.transform import Discounting, Drawn, Transform, gamma_of
from flowrl.nodes.origin import ENV, OFFSET
from flowrl.nodes.returns import bootstrap_discount

NEEDED = ("reward", "terminated", "truncated", "last", "discount")


class NStep(Transform):
    """As the windows of a collector with `nstep`, value for value (Sutton & Barto 2018, equation 7.1).

    A window ends with the episode: truncation bootstraps, termination does not. Where the rows that
    follow have not come yet, it bootstraps at the last that is there.
    """

    sums_rewards = True

    class Config(Discounting):
        steps: int = param(..., "rewards that are summed before the target bootstraps", ge=1)

        tokens_apart: bool = param(
            False, "rows do not say where they come from: windows end with their token"
        )

    def check(self, schema: Schema) -> None:
        """The columns, and rows of one reward, that are known to follow each other."""
        gamma_of("n_step", self.config.policy)
        missing = [name for name in NEEDED if name not in schema]
        if missing or not _next_obs(schema):
            lacking = missing[0] if missing else "next_obs"
            raise UnsoundError(
                f"n_step needs the column '{lacking}'", "connect a collector", "transforms"
            )

        followed = ENV in schema or OFFSET in schema  # by their origin, or whole episodes
        if followed and self.config.tokens_apart:
            what = "`tokens_apart` is for rows that do not say where they come from"
            raise UnsoundError(what, "leave it out", "transforms")
        if not followed and not self.config.tokens_apart:
            raise UnsoundError(
                "n_step follows rows from token to token, and these do not say where they come from",
                "write `origin: true` at the collector, or `tokens_apart: true` here",
                "transforms",
            )

    def apply(self, drawn: Drawn) -> None:
        """Sum rewards, and take what comes next from the window's end."""
        steps, gamma = self.config.steps, gamma_of("n_step", self.config.policy)
        rows, there = drawn.runs.follow(drawn.numbers, steps)
        reward = drawn.stored("reward", rows)
        total = np.zeros(len(rows))
        for j in range(steps):  # (W, steps); in this order, as the collector's windows
            total += gamma**j * there[:, j] * reward[:, j]
        count = there.sum(1)
        end = rows[np.arange(len(rows)), count - 1]
        drawn.take_from([*_next_obs_of(drawn), "terminated", "truncated"], end)
        drawn["reward"] = total.astype(reward.dtype)
        drawn["discount"] = bootstrap_discount(gamma, drawn["terminated"], count)


def _next_obs(schema: Schema) -> list[str]:
    return [name for name in schema if name.split("/")[0] == "next_obs"]


def _next_obs_of(drawn: Drawn) -> list[str]:
    return [name for name in drawn.names if name.split("/")[0] == "next_obs"]
