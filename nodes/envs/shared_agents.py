"""A PettingZoo parallel env whose agents act individually: each step returns one record of all agents.

`SharedAgentsEnv` has the interface of an ordinary env. `AgentRows` (in `agent_rows.py`) takes its records apart.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.config import PartSpec
from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.agent_rows import (
    ACTED,
    ACTIVE,
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
from flowrl.nodes.envs.output_checks import InvalidOutputError, check_observations
from flowrl.nodes.envs.parallel_api import common_space
from flowrl.nodes.envs.spec import observation_columns, space_column
from flowrl.nodes.envs.wrappers.wrapper import Wrappers
from flowrl.nodes.observations import leaf_columns


class SharedAgentsEnv:
    """The episode of the env ends when no agent is active any more."""

    def __init__(
        self, env: Any, wrappers: Wrappers, max_steps: int | None, info: Schema | None = None
    ) -> None:
        """Each agent has `wrappers` of its own. After `max_steps` the episodes of all active agents are truncated.

        `info` lists the entries of each agent's info that are written into the record.
        """
        self._env, self._max_steps = env, max_steps
        self._positions = {agent: k for k, agent in enumerate(env.possible_agents)}
        spaces = common_space(env, "observation"), common_space(env, "action")
        self._wrapped = {agent: WrappedAgent(*spaces, wrappers) for agent in self._positions}
        obs_space, action_space = self._wrapped[env.possible_agents[0]].spaces
        self.agents = AgentColumns(
            len(self._positions),
            observation_columns(obs_space),
            space_column(action_space, "action"),
            info or {},
        )
        self._info_reader = InfoReader(self.agents.info)
        self._dtype = self.agents.record.dtype
        self._obs_dtype = np.dtype(self.agents.obs.dtype)
        self._leaves = [(leaf, f"{OBS}/{leaf}") for leaf in leaf_columns(self.agents.obs) if leaf]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self._env.reset(seed=seed, options=options)
        self._seed, self._steps, self._episodes_begun = seed, 0, 0
        self._return, self._length = [0.0] * self.agents.count, [0] * self.agents.count
        self._active = list(self._env.agents)
        if not self._active:
            raise ValueError("no agent is active after the reset")
        record = np.zeros((), self._dtype)
        self._write_obs(record, self._begin_episodes(self._active, obs, infos))
        record[ACTIVE][[self._positions[agent] for agent in self._active]] = True
        return record[()], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the active agents; actions chosen for the others have no effect."""
        chosen = {agent: action[self._positions[agent]] for agent in self._active}
        actions = {agent: self._wrapped[agent].unwrap_action(act) for agent, act in chosen.items()}
        stepped = self._env.step(actions)
        self._steps += 1
        record, after = np.zeros((), self._dtype), list(self._env.agents)
        obs = self._write_results(record, chosen, stepped)
        joined = [agent for agent in after if agent not in chosen]
        self._write_obs(record, obs | self._begin_episodes(joined, stepped[0], stepped[-1]))
        self._active = self._next_active(record, self._active, after)
        truncated = bool(record[TRUNCATED].any())
        over = not self._active
        reward = float(record[REWARD].sum())
        return record[()], reward, over and not truncated, over and truncated, stepped[-1]

    @property
    def metadata(self) -> Any:
        return getattr(self._env, "metadata", {})

    def render(self) -> Any:
        return self._env.render()

    @property
    def layers(self) -> list[Any]:
        """The outermost wrapper of each agent: data that these carry from episode to episode is saved."""
        return [agent.outermost for agent in self._wrapped.values()]

    def close(self) -> None:
        self._env.close()

    def _begin_episodes(
        self, agents: Sequence[str], obs: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Begin these agents' episodes, at the reset or later; return their first observations."""
        wrapped_obs = {}
        for agent in agents:
            if agent not in self._positions:
                raise ValueError(
                    f"agent {agent} is active and not one of the env's possible_agents"
                )
            k = self._positions[agent]
            first = _value_of(agent, "observation", obs), infos.get(agent, {})
            wrapped_obs[agent] = self._wrapped[agent].reset(self._agent_seed(k), *first)
            self._return[k], self._length[k] = 0.0, 0
            self._episodes_begun += 1
        return wrapped_obs

    def _write_results(
        self, record: Array, chosen: Mapping[str, Any], stepped: Any
    ) -> dict[str, Any]:
        """Write rewards and flags of the agents that acted; return what they observe."""
        obs, rewards, *ends, infos = stepped
        fields = [record[name] for name in (ACTED, REWARD, TERMINATED, TRUNCATED)]
        wrapped_obs = {}
        for agent, action in chosen.items():
            own_reward = _value_of(agent, "reward", rewards)
            flags = (end.get(agent, False) for end in ends)
            own_obs = _value_of(agent, "observation", obs)
            result = own_obs, own_reward, *flags, infos.get(agent, {})
            wrapped_obs[agent], *values, info = self._wrapped[agent].step(action, result)
            self._write_info(record, agent, info)
            self._count_step(agent, own_reward, values[0])
            for field, value in zip(fields, (True, *values), strict=True):
                field[self._positions[agent]] = value
        return wrapped_obs

    def _write_info(self, record: Array, agent: str, info: Mapping[str, Any]) -> None:
        values = self._info_reader.read(info)
        for (name, column), value in zip(self.agents.info.items(), values, strict=True):
            record[INFO + name][self._positions[agent]] = value.view(as_bits(column))

    def _count_step(self, agent: str, own_reward: Any, reward: Any) -> None:
        """Count a step of the agent's episode; `own_reward` is the reward without wrappers."""
        for value in (own_reward, reward):
            if not math.isfinite(value):
                raise ValueError(
                    f"agent {agent}: the reward is {value!r}; it must be a finite number"
                )
        k = self._positions[agent]
        self._return[k] += float(own_reward)
        self._length[k] += 1

    def _write_obs(self, record: Array, obs: Mapping[str, Any]) -> None:
        """Write what these agents observe, and the returns and lengths of all agents' episodes so far."""
        try:
            rows = check_observations([*obs.values()], self.agents.obs, self._obs_dtype)
        except InvalidOutputError as invalid:
            raise ValueError(f"agent {[*obs][invalid.k]}: {invalid}") from invalid
        positions = [self._positions[agent] for agent in obs]
        if not self._leaves:
            record[OBS][positions] = rows
        for leaf, name in self._leaves:
            record[name][positions] = rows[leaf]
        record[RETURN], record[LENGTH] = self._return, self._length
        record[SEED] = NO_SEED if self._seed is None else self._seed

    def _next_active(self, record: Array, before: Sequence[str], after: Sequence[str]) -> list[str]:
        """The agents that act in the next step; none if the env's episode is over."""
        ended = record[TERMINATED] | record[TRUNCATED]
        over = {agent for agent in before if ended[self._positions[agent]]}
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
            record[TRUNCATED] |= record[ACTED] & ~ended
            return []
        record[ACTIVE][[self._positions[agent] for agent in active]] = True
        return active

    def _agent_seed(self, k: int) -> int | None:
        """The seed for the wrappers of agent k in the episode that it begins."""
        if self._seed is None:
            return None
        text = b"%d/%d/%d" % (self._seed, k, self._episodes_begun)
        return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") >> 1


def _value_of(agent: str, what: str, values: Mapping[str, Any]) -> Any:
    if agent not in values:
        raise ValueError(f"agent {agent} is active, but the env returns no {what} for it")
    return values[agent]


class StepPlaybackEnv(gymnasium.Env):
    """One agent as an env for its wrappers. The step of all agents was taken already; this env returns its result."""

    def __init__(self, obs_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = obs_space, action_space
        self.reset_result: Any = None
        self.action: Any = None
        self.step_result: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        obs, info = self.reset_result
        return obs, info

    def step(self, action: Any) -> Any:
        if not np.array_equal(action, self.action):
            raise ValueError(
                f"a wrapper changes the action {self.action} to {action}; a wrapper of one agent may change "
                "actions only as a `gymnasium.ActionWrapper`, and not at random"
            )
        return self.step_result


class WrappedAgent:
    """One agent with its wrappers."""

    def __init__(self, obs_space: Any, action_space: Any, wrappers: Wrappers) -> None:
        self._inner = self._outer = StepPlaybackEnv(obs_space, action_space)
        for wrapper in wrappers:
            part: Any = wrapper.make() if isinstance(wrapper, PartSpec) else wrapper
            if not part.works_per_agent:
                what = f"{type(part).__name__} cannot be applied to one of many agents"
                hint = "leave it out, because all agents of an env step together"
                raise UnsoundError(what, hint, "env.wrappers")
            self._outer = part.wrap(self._outer)

    @property
    def outermost(self) -> Any:
        return self._outer

    @property
    def spaces(self) -> tuple[Any, Any]:
        """The spaces of observations and actions, as wrappers leave them."""
        return self._outer.observation_space, self._outer.action_space

    def reset(self, seed: int | None, obs: Any, info: Any) -> Any:
        """Wrap the agent's first observation."""
        if self._outer is self._inner:
            return obs
        self._inner.reset_result = obs, info
        return self._outer.reset(seed=seed)[0]

    def unwrap_action(self, action: Any) -> Any:
        """The action as the wrappers pass it to the env."""
        env: Any = self._outer
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, gymnasium.ActionWrapper):
                action = env.action(action)
            env = env.env
        self._inner.action = action
        return action

    def step(self, action: Any, result: Any) -> Any:
        """Wrap the result of the agent's step."""
        if self._outer is self._inner:
            return result
        self._inner.step_result = result
        return self._outer.step(action)
