"""Writes what the agents of an env observe and receive into records, which `AgentRows` reads."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.nodes.envs.agent_columns import (
    INFO,
    LENGTH,
    NO_SEED,
    OBS,
    RETURN,
    REWARD,
    SEED,
    TERMINATED,
    TRUNCATED,
    AgentColumns,
    as_bits,
)
from flowrl.nodes.envs.info import InfoReader
from flowrl.nodes.envs.output_checks import (
    InvalidOutputError,
    check_ends,
    check_observations,
)
from flowrl.nodes.envs.spec import observation_columns, space_column
from flowrl.nodes.envs.wrapped_agent import WrappedAgent
from flowrl.nodes.envs.wrappers.wrapper import Wrappers
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.observations import leaf_columns


class RecordWriter:
    """The agents with equal columns: their wrappers, and their episodes' returns and lengths."""

    def __init__(
        self,
        agents: Sequence[str],
        spaces: tuple[Any, Any],
        wrappers: Wrappers,
        info: Schema,
        turns: bool = False,
        first: int = 0,
    ) -> None:
        """`spaces` are those of an agent's observations and actions. With `turns`, a step may complete later.

        `first` is the number of agents of the env that are in groups before these, whose wrappers have other seeds.
        """
        self.positions = {agent: k for k, agent in enumerate(agents)}
        self._first = first
        self._wrapped = {agent: WrappedAgent(*spaces, wrappers) for agent in agents}
        obs_space, action_space = self._wrapped[agents[0]].spaces
        self.columns = AgentColumns(
            len(agents),
            observation_columns(obs_space),
            space_column(action_space, "action"),
            info,
            turns,
        )
        self._info_reader = InfoReader(info)
        self._obs_dtype = np.dtype(self.columns.obs.dtype)
        self._has_mask = ACTION_MASK in leaf_columns(self.columns.obs)
        self._leaves = [(leaf, f"{OBS}/{leaf}") for leaf in leaf_columns(self.columns.obs) if leaf]

    def __contains__(self, agent: str) -> bool:
        return agent in self.positions

    @property
    def layers(self) -> list[Any]:
        """The outermost wrapper of each agent."""
        return [agent.outermost for agent in self._wrapped.values()]

    def actions_of(self, action: Any, agents: Sequence[str]) -> dict[str, Any]:
        """The actions of these agents in the action of the env."""
        return {agent: action[self.positions[agent]] for agent in agents}

    def begin_game(self, seed: int | None) -> None:
        """Forget all episodes; `seed` is that of the env's episode."""
        self._seed, self._episodes_begun = seed, 0
        self._return, self._length = [0.0] * self.columns.count, [0] * self.columns.count

    def begin_episode(self, agent: str, obs: Any, info: Mapping[str, Any]) -> Any:
        """Begin an agent's episode; return its first observation as its wrappers leave it."""
        k = self.positions[agent]
        wrapped_obs = self._wrapped[agent].reset(self._agent_seed(k), obs, info)
        self._return[k], self._length[k] = 0.0, 0
        self._episodes_begun += 1
        return wrapped_obs

    def unwrap_action(self, agent: str, action: Any) -> Any:
        """The action as the agent's wrappers pass it to the env."""
        return self._wrapped[agent].unwrap_action(action)

    def complete_step(self, record: Array, agent: str, action: Any, result: Any) -> Any:
        """Write the reward, flags and info of a completed step; return the wrapped observation.

        `result` is what a step of an env returns, for this agent alone.
        """
        own_reward = result[1]
        wrapped_obs, reward, terminated, truncated, info = self._wrapped[agent].step(action, result)
        self._write_info(record, agent, info)
        self.count_reward(agent, own_reward)
        _require_finite(agent, reward)
        k = self.positions[agent]
        self._length[k] += 1
        values = (reward, *check_ends(terminated, truncated, agent))
        for name, value in zip((REWARD, TERMINATED, TRUNCATED), values, strict=True):
            record[name][k] = value
        return wrapped_obs

    def count_reward(self, agent: str, own_reward: Any) -> None:
        """Add a reward, without wrappers, to the return of the agent's episode."""
        _require_finite(agent, own_reward)
        self._return[self.positions[agent]] += float(own_reward)

    def mark(self, record: Array, name: str, agents: Iterable[str]) -> None:
        """Set a flag of these agents."""
        record[name][[self.positions[agent] for agent in agents]] = True

    def marked(self, record: Array, name: str) -> set[str]:
        """The agents of which a flag is set."""
        flags = record[name].tolist()
        return {agent for agent, k in self.positions.items() if flags[k]}

    def write_ends(self, record: Array, agent: str, terminated: bool, truncated: bool) -> None:
        """Write whether an agent's episode has ended, without a step of it."""
        k = self.positions[agent]
        record[TERMINATED][k], record[TRUNCATED][k] = check_ends(terminated, truncated, agent)

    def total_reward(self, record: Array) -> float:
        """The sum of all agents' rewards."""
        return float(record[REWARD].sum())

    def allow_some_action(self, record: Array, agents: Iterable[str]) -> None:
        """Let the mask of each of these agents' observation allow everything if it allows nothing."""
        if not self._has_mask:
            return
        masks = record[f"{OBS}/{ACTION_MASK}"]
        for k in (self.positions[agent] for agent in agents):
            if not masks[k].any():
                masks[k] = 1

    def write_obs(self, record: Array, obs: Mapping[str, Any]) -> None:
        """Write what these agents observe, and the returns and lengths of all agents' episodes so far."""
        if obs:
            self._write_rows(record, obs)
        record[RETURN], record[LENGTH] = self._return, self._length
        record[SEED] = NO_SEED if self._seed is None else self._seed

    def _write_rows(self, record: Array, obs: Mapping[str, Any]) -> None:
        try:
            rows = check_observations([*obs.values()], self.columns.obs, self._obs_dtype)
        except InvalidOutputError as invalid:
            raise ValueError(f"agent {[*obs][invalid.k]}: {invalid}") from invalid
        positions = [self.positions[agent] for agent in obs]
        if not self._leaves:
            record[OBS][positions] = rows
        for leaf, name in self._leaves:
            record[name][positions] = rows[leaf]

    def _write_info(self, record: Array, agent: str, info: Mapping[str, Any]) -> None:
        values = self._info_reader.read(info)
        for (name, column), value in zip(self.columns.info.items(), values, strict=True):
            record[INFO + name][self.positions[agent]] = value.view(as_bits(column))

    def _agent_seed(self, k: int) -> int | None:
        """The seed for the wrappers of agent k in the episode that it begins."""
        if self._seed is None:
            return None
        text = b"%d/%d/%d" % (self._seed, self._first + k, self._episodes_begun)
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") >> 1


def _require_finite(agent: str, reward: Any) -> None:
    if not math.isfinite(reward):
        raise ValueError(f"agent {agent}: the reward is {reward!r}; it must be a finite number")
