"""The collector of episodes: a fixed number of whole ones in each firing."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Batch, Column
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.collector import Collector, amount
from flowrl.nodes.collectors.episodes import (
    all_at_once,
    as_ready,
    episode_rows,
    in_order,
    offsets,
    play,
    quotas,
)
from flowrl.nodes.collectors.transitions import row_schema
from flowrl.nodes.observations import flatten_columns
from flowrl.nodes.origin import OFFSET
from flowrl.nodes.policy import Policy


class EpisodeCollector(Collector):
    """Each token holds `n_episode` whole episodes, one after another, sorted by env.

    The column `offset` counts an episode's rows from 0: where it is 0, an episode begins. How many
    episodes each env plays is settled before, so short ones are not preferred; who has played them
    waits for the others. All steps of a token are acted with the same weights.
    """

    class Config(Collector.Config):
        n_episode: int = param(8, "episodes in each token, over all envs", ge=1)
        most_steps: int = param(
            100_000, "steps of an episode; a longer one is an error, it may have no end", ge=1
        )
        stepping: Literal["together", "ready"] = param(
            "together", "all envs that are left at once, or each as it is ready"
        )
        least: int = param(
            1, "`ready`: envs that the policy waits for, to serve them at once", ge=1
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The columns; how many rows there will be depends on the episodes."""
        spec, policy = cls.described(config, surroundings)
        _demand(config, policy)
        extra = cls.extra_columns(config, policy)
        rows = row_schema(spec.obs, spec.action, extra)
        why = "envs are stepped as they are ready" if config.stepping == "ready" else ""
        return Facts(
            outs={"data": {**rows, OFFSET: Column("int32")}},
            nondeterministic=why,
            imports=policy.imported_modules(learn=False),
        )

    def setup(self) -> None:
        """Between two firings every env is at an episode's begin."""
        self._turn = 0  # the env that plays an odd episode next
        super().setup()
        _demand(self.config, self._policy)

    def fire(self, weights: State | None) -> Batch:
        """Collect with these weights."""
        self._load(weights)
        return self._collect(self.config.n_episode)

    def collect(self, n_episode: int | None = None, weights: State | None = None) -> list[Batch]:
        """By hand: so many episodes, each a table; by default as configured; with these weights, if given."""
        n = amount("n_episode", n_episode, self.config.n_episode)
        self._load(weights)
        rows = self._collect(n)
        begins = np.flatnonzero(rows[OFFSET] == 0)
        spans = zip(begins, [*begins[1:], len(rows)], strict=True)
        return [rows.take(slice(begin, end)) for begin, end in spans]

    def _collect(self, n: int) -> Batch:
        acting, c = self._acting, self.config
        left = quotas(n, acting.count, self._turn)
        self._turn = (self._turn + n) % acting.count
        step = as_ready(acting, c.least) if c.stepping == "ready" else all_at_once(acting)
        agents = self.envs.spec().agents
        if agents > 1:
            acting.begin()  # who had played its share may be in the middle of an episode
        steps = list(play(step, left, c.most_steps, agents))
        rows = episode_rows(in_order(steps, acting.count), self._policy.gamma, self._policy.nstep)
        rows[OFFSET] = offsets(rows["last"])
        episodes = [episode for taken in steps for episode in taken.episodes]
        taken = sum(len(taken.columns["reward"]) for taken in steps)
        kept = len(rows["last"])
        self._report(kept, episodes, taken - kept)
        return Batch(flatten_columns(rows))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next token depends on, beside the weights and the envs."""
        return {**super().state_dict(), "turn": self._turn}

    def load_state_dict(self, state: Any) -> None:
        """Go on from there, with the policy that acts now."""
        super().load_state_dict(state)
        self._turn = int(state["turn"])


def _demand(config: Any, policy: Policy) -> None:
    if policy.unroll_steps is not None:
        what = f"{type(policy).__name__} learns from unrolls, and these are whole episodes"
        raise UnsoundError(what, "take a sample_collector", "policy")
    if config.least > 1 and config.stepping != "ready":
        raise UnsoundError("`least` is for `stepping: ready`", "leave it out", "least")
