"""A PettingZoo parallel env whose agents act individually: each step returns one record of all agents.

`SharedAgentsEnv` has the interface of an ordinary env. `AgentRows` (in `agent_rows.py`) takes its records apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.nodes.envs.agent_columns import ACTED, ACTIVE, TERMINATED, TRUNCATED
from flowrl.nodes.envs.agent_groups import Groups
from flowrl.nodes.envs.group_records import make_writer
from flowrl.nodes.envs.parallel_api import while_no_other_is_made
from flowrl.nodes.envs.wrappers.wrapper import Wrappers


class SharedAgentsEnv:
    """The episode of the env ends when no agent is active any more."""

    def __init__(
        self,
        env: Any,
        wrappers: Wrappers,
        max_steps: int | None,
        info: Schema | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Each agent has `wrappers` of its own. After `max_steps` the episodes of all active agents are truncated.

        `info` lists the entries of each agent's info that are written into the record. `groups` are the names of the
        agents in each group; without it all agents have the same columns.
        """
        self._env, self._max_steps = env, max_steps
        self._writer = make_writer(env, groups, wrappers, info or {})
        self.agents = self._writer.columns
        self._dtype = self.agents.record.dtype

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self._env.reset(seed=seed, options=options)
        self._steps = 0
        self._writer.begin_game(seed)
        self._active = list(self._env.agents)
        if not self._active:
            raise ValueError("no agent is active after the reset")
        record = np.zeros((), self._dtype)
        self._writer.write_obs(record, self._begin_episodes(self._active, obs, infos))
        self._writer.mark(record, ACTIVE, self._active)
        return record[()], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the active agents; actions chosen for the others have no effect."""
        chosen = self._writer.actions_of(action, self._active)
        actions = {agent: self._writer.unwrap_action(agent, act) for agent, act in chosen.items()}
        stepped = self._env.step(actions)
        self._steps += 1
        record, after = np.zeros((), self._dtype), list(self._env.agents)
        obs = self._write_results(record, chosen, stepped)
        joined = [agent for agent in after if agent not in chosen]
        self._writer.write_obs(record, obs | self._begin_episodes(joined, stepped[0], stepped[-1]))
        self._active = self._next_active(record, self._active, after)
        truncated = bool(self._writer.marked(record, TRUNCATED))
        over = not self._active
        reward = self._writer.total_reward(record)
        return record[()], reward, over and not truncated, over and truncated, stepped[-1]

    @property
    def metadata(self) -> Any:
        return getattr(self._env, "metadata", {})

    def render(self) -> Any:
        return self._env.render()

    @property
    def layers(self) -> list[Any]:
        """The outermost wrapper of each agent: data that these carry from episode to episode is saved."""
        return self._writer.layers

    def close(self) -> None:
        with while_no_other_is_made():
            self._env.close()

    def _begin_episodes(
        self, agents: Sequence[str], obs: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Begin these agents' episodes, at the reset or later; return their first observations."""
        wrapped_obs = {}
        for agent in agents:
            if agent not in self._writer:
                raise ValueError(
                    f"agent {agent} is active and not one of the env's possible_agents"
                )
            first = _value_of(agent, "observation", obs), infos.get(agent, {})
            wrapped_obs[agent] = self._writer.begin_episode(agent, *first)
        return wrapped_obs

    def _write_results(
        self, record: Array, chosen: Mapping[str, Any], stepped: Any
    ) -> dict[str, Any]:
        """Write rewards and flags of the agents that acted; return what they observe."""
        obs, rewards, *ends, infos = stepped
        wrapped_obs = {}
        for agent, action in chosen.items():
            own_reward = _value_of(agent, "reward", rewards)
            flags = (end.get(agent, False) for end in ends)
            own_obs = _value_of(agent, "observation", obs)
            result = own_obs, own_reward, *flags, infos.get(agent, {})
            wrapped_obs[agent] = self._writer.complete_step(record, agent, action, result)
        self._writer.mark(record, ACTED, [*chosen])
        return wrapped_obs

    def _next_active(self, record: Array, before: Sequence[str], after: Sequence[str]) -> list[str]:
        """The agents that act in the next step; none if the env's episode is over."""
        marked = self._writer.marked
        over = marked(record, TERMINATED) | marked(record, TRUNCATED)
        vanished = set(before).difference(over, after)
        if vanished:
            raise ValueError(
                f"agent {min(vanished)} is not active any more, but was neither terminated nor truncated"
            )
        active = [agent for agent in after if agent not in over]
        if active and over.intersection(after):
            raise ValueError(
                f"agent {min(over.intersection(after))} is still active, but its episode has ended"
            )
        if self._steps == self._max_steps:
            self._writer.mark(record, TRUNCATED, marked(record, ACTED) - over)
            return []
        self._writer.mark(record, ACTIVE, active)
        return active


def _value_of(agent: str, what: str, values: Mapping[str, Any]) -> Any:
    if agent not in values:
        raise ValueError(f"agent {agent} is active, but the env returns no {what} for it")
    return values[agent]
