"""Plays a fixed number of episodes with a policy for each group of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.collectors.actor import Actor
from flowrl.nodes.collectors.episodes import episode_quotas
from flowrl.nodes.collectors.grouped_envs import GroupedEnvs
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.policy import AnyActMode


class GroupEpisodes(NamedTuple):
    """What a group did in the episodes of the envs, sorted by env and then by time."""

    episodes: list[Episode]  # of its agents
    team_returns: list[
        float
    ]  # of each episode of an env: the sum of the returns of the group's agents


class _Group:
    """One group of the envs that play: its actor, and its episodes by env."""

    def __init__(self, envs: GroupedEnvs, name: str, mode: AnyActMode) -> None:
        rows = envs.rows[name]
        self._agents = rows.spec().agents
        self._actor = Actor(rows, {})
        self._actor.set_mode(mode, {"action": rows.spec().action})
        self._actor.reset()
        self._played: list[list[Episode]] = [[] for _ in range(envs.count)]
        self._totals: list[list[float]] = [[] for _ in range(envs.count)]
        self._current: list[list[Episode]] = [[] for _ in range(envs.count)]  # of the env's episode

    def begin_step(self, envs: Array) -> None:
        self._actor.send(self._rows_of(envs))

    def end_step(self, envs: Array) -> None:
        for episode in self._actor.receive(self._rows_of(envs)).episodes:
            self._current[episode.env_id // self._agents].append(episode)

    def end_episode(self, env: int, failed: bool) -> None:
        """Keep what the agents did in the env's episode, unless it failed."""
        current, self._current[env] = self._current[env], []
        if not failed:
            self._played[env] += current
            self._totals[env].append(sum(episode.total for episode in current))

    def result(self) -> GroupEpisodes:
        episodes = [episode for of_env in self._played for episode in of_env]
        return GroupEpisodes(episodes, [total for of_env in self._totals for total in of_env])

    def _rows_of(self, envs: Array) -> Array:
        rows: Array = (envs[:, None] * self._agents + np.arange(self._agents)).reshape(-1)
        return rows


def play_groups(
    envs: GroupedEnvs, modes: Mapping[str, AnyActMode], episodes: int, most_steps: int = 100_000
) -> dict[str, GroupEpisodes]:
    """Play new episodes, spread evenly over the envs; an env that has played its quota is not stepped any more."""
    envs.reset()
    groups = {name: _Group(envs, name, mode) for name, mode in modes.items()}
    left, lengths = episode_quotas(episodes, envs.count), np.zeros(envs.count, np.int64)
    while left.any():
        playing = np.flatnonzero(left)
        for group in groups.values():
            group.begin_step(playing)
        for group in groups.values():
            group.end_step(playing)
        steps: Any = envs.steps
        lengths[playing] += 1
        over = steps.terminated | steps.truncated
        over[list(steps.failed)] = True
        for k in np.flatnonzero(over).tolist():
            env, failed = int(playing[k]), k in steps.failed
            for group in groups.values():
                group.end_episode(env, failed)
            left[env] -= not failed
            lengths[env] = 0
        _check_lengths(lengths, most_steps)
    return {name: group.result() for name, group in groups.items()}


def _check_lengths(lengths: Array, most_steps: int) -> None:
    longest = int(lengths.argmax())
    if lengths[longest] >= most_steps:
        raise ValueError(
            f"env {longest}: an episode has not ended after {most_steps:,} steps; give the env "
            "`max_episode_steps`, or this node more `most_steps`"
        )
