"""Agent rows that report the matches of their envs: the seeds of current ones, and the results of ended ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.collectors.joined_managers import JoinedManagers, join_managers
from flowrl.nodes.envs.agent_columns import RETURN, SEED
from flowrl.nodes.envs.agent_rows import AgentRows
from flowrl.nodes.envs.steps import Steps


class EndedMatch(NamedTuple):
    """A match that ended with a step, or that failed with its env."""

    env: int
    seed: int
    returns: Array  # (agents,) in the env's own rewards
    length: int  # in steps of the env
    failed: bool = False  # it has no result


class MatchRows(AgentRows):
    """The agents of a manager's envs, with the seeds and the results of the envs' episodes."""

    def __init__(self, envs: Any) -> None:
        super().__init__(envs)
        # of the episode that each env plays, or plays next
        self.seeds = np.zeros(self._spec.count // self._spec.agents, np.int64)
        self._ended: list[EndedMatch] = []

    def reset(self) -> Array:
        records = self.envs.reset()
        self.seeds[:] = records[SEED]
        self._ended = []
        return self.obs_to_act_on(records)

    def take_ended(self) -> list[EndedMatch]:
        """Return and forget the matches that have ended or failed since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _agent_steps(self, rows: Array, steps: Steps) -> Steps:
        envs = self._env_ids(rows)
        lengths = {episode.env_id: episode.length for episode in steps.episodes}
        over = steps.terminated | steps.truncated
        over[list(steps.failed)] = False
        for k in sorted([*np.flatnonzero(over).tolist(), *steps.failed]):
            env, failed = int(envs[k]), k in steps.failed
            returns = np.array(steps.next_obs[RETURN][k])
            length = 0 if failed else lengths[env]
            self._ended.append(EndedMatch(env, int(self.seeds[env]), returns, length, failed))
        self.seeds[envs] = steps.obs[SEED]
        return super()._agent_steps(rows, steps)


class MatchEnvs:
    """The envs of one manager or of several, in which matches are played."""

    def __init__(self, managers: Any) -> None:
        several = isinstance(managers, Sequence)
        self._parts = [as_match_rows(one) for one in (managers if several else [managers])]
        joined = join_managers(self._parts)
        self.rows: MatchRows | JoinedManagers = joined
        spec = joined.spec()
        self.agents, self.count = spec.agents, spec.count // spec.agents
        counts = [len(part.seeds) for part in self._parts]
        self._first_env = np.cumsum([0, *counts]).tolist()

    @property
    def seeds(self) -> Array:
        """The seed of the episode that each env plays, or plays next."""
        return np.concatenate([part.seeds for part in self._parts])

    def restore_seeds(self, seeds: Array) -> None:
        """Continue with the envs of a saved state, which are in episodes with these seeds."""
        for part, first in zip(self._parts, self._first_env, strict=False):
            part.seeds[:] = seeds[first : first + len(part.seeds)]

    def take_ended(self) -> list[EndedMatch]:
        """Return and forget the matches that have ended or failed since the last call, in the order of envs."""
        return [
            match._replace(env=match.env + first)
            for part, first in zip(self._parts, self._first_env, strict=False)
            for match in part.take_ended()
        ]


def as_match_rows(manager: Any) -> MatchRows:
    """The rows of a manager, whose envs have several agents that act by themselves."""
    if isinstance(manager, MatchRows):
        return manager
    return MatchRows(manager.envs if isinstance(manager, AgentRows) else manager)
