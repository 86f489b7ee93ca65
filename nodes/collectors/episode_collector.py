"""The collector of a fixed number of whole episodes in each firing."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Batch, Column
from flowrl.core.config import param, part
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.collector import Collector, requested_count
from flowrl.nodes.collectors.episodes import (
    episode_offsets,
    episode_quotas,
    order_by_env,
    play_quotas,
    step_together,
    step_when_ready,
)
from flowrl.nodes.collectors.transitions import row_schema, transitions
from flowrl.nodes.devices import device_facts
from flowrl.nodes.nstep import require_gamma
from flowrl.nodes.observations import flatten_columns
from flowrl.nodes.origin import OFFSET_COLUMN
from flowrl.nodes.policy import Policy, acting_facts, rows_gamma, weights_facts


class EpisodeCollector(Collector):
    """Each token holds `n_episode` whole episodes, one after another, sorted by env.

    The column `offset` is a row's index in its episode, so an episode begins where it is 0. The number
    of episodes of each env is fixed beforehand, so short episodes are not preferred; an env that has
    played its quota waits for the others. All steps of a token are acted with the same weights.
    """

    class Config(Collector.Config):
        n_episode: int = param(8, "episodes in each token, over all envs", ge=1)
        most_steps: int = param(
            100_000, "steps of an episode; a longer episode is an error, it may never end", ge=1
        )
        stepping: Literal["together", "ready"] = param(
            "together", "all unfinished envs step at once, or each as soon as it is ready"
        )
        least: int = param(1, "`ready`: ready envs that a call of the policy waits for", ge=1)
        learning_policy: Any = part(
            "policy",
            "the policy that learns from the rows, for their discount if the one that acts does not learn; by hand: "
            "the one that acts",
            shared="policy",
            default=None,
            reads=("gamma",),
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        spec, policy = cls.spec_and_policy(config, surroundings)
        _check_config(config, policy)
        extra = cls.extra_columns(config, policy, spec)
        gamma = rows_gamma(policy, config.learning_policy)
        rows = {
            **row_schema(spec.obs, spec.action, extra, gamma),
            **policy.estimated_columns(),
        }
        if config.learning_policy is not None:
            require_gamma(config.learning_policy, rows, "learning_policy")
        why = "envs are stepped as they are ready" if config.stepping == "ready" else ""
        return Facts(
            outs={"data": {**rows, OFFSET_COLUMN: Column("int32")}},
            env_steps=None if config.counts else 0,
            nondeterministic=why,
            **weights_facts({"weights": (policy, "policy")}),
            **acting_facts({"policy": policy}, explores=True, gamma=gamma),
            needs_settings={"weights": policy.collect_settings()},
            **device_facts(config, policy, False, surroundings.runs_here),
        )

    def setup(self) -> None:
        self._first_env = 0  # the first of the envs that play one more episode, if quotas differ
        super().setup()
        _check_config(self.config, self.policy)

    def fire(self, weights: State | None) -> Batch:
        self._load_weights(weights)
        return self._collect(self.config.n_episode)

    def collect(self, n_episode: int | None = None, weights: State | None = None) -> list[Batch]:
        """By hand: return `n_episode` episodes (by default as configured), a batch each.

        With `weights`, these act from now on.
        """
        n = requested_count("n_episode", n_episode, self.config.n_episode)
        self._load_weights(weights)
        rows = self._collect(n)
        begins = np.flatnonzero(rows[OFFSET_COLUMN] == 0)
        spans = zip(begins, [*begins[1:], len(rows)], strict=True)
        return [rows.take(slice(begin, end)) for begin, end in spans]

    def _collect(self, n: int) -> Batch:
        """Play the next episodes. Afterwards every env is at the start of an episode."""
        actor, c = self._actor, self.config
        quotas = episode_quotas(n, actor.count, self._first_env)
        self._first_env = (self._first_env + n) % actor.count
        step = step_when_ready(actor, c.least) if c.stepping == "ready" else step_together(actor)
        together = self.envs.spec().together
        if together > 1:
            actor.reset()  # one that has played its quota may be in the middle of an episode
        steps = list(play_quotas(step, quotas, c.most_steps, together))
        columns = order_by_env(steps, actor.count)
        rows = transitions(columns, rows_gamma(self.policy, c.learning_policy))
        rows[OFFSET_COLUMN] = episode_offsets(rows["last"])
        episodes = [episode for collected in steps for episode in collected.episodes]
        taken_steps = sum(len(collected.columns["reward"]) for collected in steps)
        kept_steps = len(rows["last"])
        self._report(kept_steps, episodes, taken_steps - kept_steps, rows["action"])
        return self._estimated(Batch(flatten_columns(rows)))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "first_env": self._first_env}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self._first_env = int(state["first_env"])


def _check_config(config: Any, policy: Policy) -> None:
    if policy.unroll_steps is not None:
        what = f"{type(policy).__name__} learns from unrolls, and the rows are whole episodes"
        raise UnsoundError(what, "take a sample_collector", "policy")
    if config.least > 1 and config.stepping != "ready":
        raise UnsoundError("`least` is for `stepping: ready`", "leave it out", "least")
