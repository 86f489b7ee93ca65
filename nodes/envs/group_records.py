"""Writes the record of an env whose agents are in groups: each group has a part of it, and a writer of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.agent_columns import GroupColumns, part_dtype
from flowrl.nodes.envs.agent_groups import Groups
from flowrl.nodes.envs.agent_records import RecordWriter
from flowrl.nodes.envs.parallel_api import common_space
from flowrl.nodes.envs.wrappers.wrapper import Wrappers


class GroupWriters:
    """Writes as a `RecordWriter` does, for agents of several groups."""

    def __init__(self, writers: Mapping[str, RecordWriter]) -> None:
        self._writers = writers
        self._group_of = {agent: name for name, one in writers.items() for agent in one.positions}
        self.columns = GroupColumns({name: one.columns for name, one in writers.items()})
        dtype = self.columns.record.dtype
        self._dtypes = {name: part_dtype(dtype, name) for name in writers}

    def __contains__(self, agent: str) -> bool:
        return agent in self._group_of

    @property
    def layers(self) -> list[Any]:
        """The outermost wrapper of each agent."""
        return [layer for writer in self._writers.values() for layer in writer.layers]

    def actions_of(self, action: Any, agents: Sequence[str]) -> dict[str, Any]:
        """The actions of these agents in the action of the env."""
        split = self.columns.split_action(np.asarray(action))
        found: dict[str, Any] = {}
        for agent in agents:
            group = self._group_of[agent]
            found |= self._writers[group].actions_of(split[group], [agent])
        return found

    def begin_game(self, seed: int | None) -> None:
        """Forget all episodes; `seed` is that of the env's episode."""
        for writer in self._writers.values():
            writer.begin_game(seed)

    def begin_episode(self, agent: str, obs: Any, info: Mapping[str, Any]) -> Any:
        """Begin an agent's episode; return its first observation as its wrappers leave it."""
        return self._of(agent).begin_episode(agent, obs, info)

    def unwrap_action(self, agent: str, action: Any) -> Any:
        """The action as the agent's wrappers pass it to the env."""
        return self._of(agent).unwrap_action(agent, action)

    def complete_step(self, record: Array, agent: str, action: Any, result: Any) -> Any:
        """Write the reward, flags and info of a completed step; return the wrapped observation."""
        part = self._part(record, self._group_of[agent])
        return self._of(agent).complete_step(part, agent, action, result)

    def count_reward(self, agent: str, own_reward: Any) -> None:
        """Add a reward, without wrappers, to the return of the agent's episode."""
        self._of(agent).count_reward(agent, own_reward)

    def mark(self, record: Array, name: str, agents: Iterable[str]) -> None:
        """Set a flag of these agents."""
        chosen = list(agents)
        for writer, part in self._parts(record):
            writer.mark(part, name, [agent for agent in chosen if agent in writer])

    def marked(self, record: Array, name: str) -> set[str]:
        """The agents of which a flag is set."""
        return {
            agent for writer, part in self._parts(record) for agent in writer.marked(part, name)
        }

    def write_ends(self, record: Array, agent: str, terminated: bool, truncated: bool) -> None:
        """Write whether an agent's episode has ended, without a step of it."""
        part = self._part(record, self._group_of[agent])
        self._of(agent).write_ends(part, agent, terminated, truncated)

    def total_reward(self, record: Array) -> float:
        """The sum of all agents' rewards."""
        return sum(writer.total_reward(part) for writer, part in self._parts(record))

    def allow_some_action(self, record: Array, agents: Iterable[str]) -> None:
        """Let the mask of each of these agents' observation allow everything if it allows nothing."""
        chosen = list(agents)
        for writer, part in self._parts(record):
            writer.allow_some_action(part, [agent for agent in chosen if agent in writer])

    def write_obs(self, record: Array, obs: Mapping[str, Any]) -> None:
        """Write what these agents observe, and the returns and lengths of all agents' episodes so far."""
        for writer, part in self._parts(record):
            writer.write_obs(part, {agent: one for agent, one in obs.items() if agent in writer})

    def _of(self, agent: str) -> RecordWriter:
        return self._writers[self._group_of[agent]]

    def _part(self, record: Array, group: str) -> Array:
        part: Array = record.view(self._dtypes[group])
        return part

    def _parts(self, record: Array) -> Iterator[tuple[RecordWriter, Array]]:
        for group, writer in self._writers.items():
            yield writer, self._part(record, group)


def make_writer(
    env: Any, groups: Groups | None, wrappers: Wrappers, info: Schema, turns: bool = False
) -> RecordWriter | GroupWriters:
    """The writer of an env's agents. Without groups, all have equal spaces; `wrappers` are those of each agent."""
    if groups is None:
        spaces = common_space(env, "observation"), common_space(env, "action")
        return RecordWriter(env.possible_agents, spaces, wrappers, info, turns)
    writers: dict[str, RecordWriter] = {}
    first = 0
    for name, agents in groups.items():
        spaces = (
            _group_space(env, "observation", name, agents),
            _group_space(env, "action", name, agents),
        )
        writers[name] = RecordWriter(agents, spaces, wrappers, info, turns, first)
        first += len(agents)
    return GroupWriters(writers)


def _group_space(env: Any, what: str, group: str, agents: Sequence[str]) -> Any:
    try:
        return common_space(env, what, agents)
    except UnsoundError as unsound:
        differ = f"the agents of the group {group} differ: {unsound.what}"
        raise UnsoundError(differ, "put them into different groups", "env.agents") from unsound
