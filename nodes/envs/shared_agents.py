"""A parallel env whose agents act each for itself: what they all saw and got is one record a step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.envs.agent_rows import (
    ACTED,
    LENGTH,
    PLAYS,
    REWARD,
    SEEN,
    TERMINATED,
    TOTAL,
    TRUNCATED,
    AgentColumns,
)
from flowrl.nodes.envs.output_checks import InvalidOutputError, check_observations
from flowrl.nodes.envs.parallel_api import common_space
from flowrl.nodes.envs.spec import observation_columns, space_column
from flowrl.nodes.envs.wrapped.agents import WrappedAgent
from flowrl.nodes.envs.wrappers.wrapper import Wrappers
from flowrl.nodes.observations import leaf_columns


class SharedAgentsEnv:
    """Begins, steps and closes as every env does; ends when nobody plays any more."""

    def __init__(self, env: Any, wrappers: Wrappers, most_steps: int | None) -> None:
        """Each agent is put into `wrappers`; after `most_steps` all who still play are cut off."""
        self._env, self._most = env, most_steps
        self._places = {agent: k for k, agent in enumerate(env.possible_agents)}
        spaces = common_space(env, "observation"), common_space(env, "action")
        self._played = {agent: WrappedAgent(*spaces, wrappers) for agent in self._places}
        seen, done = self._played[env.possible_agents[0]].spaces
        self.agents = AgentColumns(
            len(self._places), observation_columns(seen), space_column(done, "action")
        )
        self._dtype = self.agents.record.dtype
        self._obs_dtype = np.dtype(self.agents.obs.dtype)
        self._leaves = [(leaf, f"{SEEN}/{leaf}") for leaf in leaf_columns(self.agents.obs) if leaf]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Those who play from the beginning begin."""
        seen, infos = self._env.reset(seed=seed, options=options)
        self._seed, self._steps, self._begun = seed, 0, 0
        self._total, self._length = [0.0] * self.agents.count, [0] * self.agents.count
        self._playing = list(self._env.agents)
        if not self._playing:
            raise ValueError("nobody plays after the reset")
        record = np.zeros((), self._dtype)
        self._show(record, self._begin(self._playing, seen, infos))
        record[PLAYS][[self._places[agent] for agent in self._playing]] = True
        return record[()], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Those who play act; what is chosen for the others has no effect."""
        chosen = {agent: action[self._places[agent]] for agent in self._playing}
        acts = {agent: self._played[agent].does(act) for agent, act in chosen.items()}
        told = self._env.step(acts)
        self._steps += 1
        record, after = np.zeros((), self._dtype), list(self._env.agents)
        shown = self._get(record, chosen, told)
        came = [agent for agent in after if agent not in chosen]
        self._show(record, shown | self._begin(came, told[0], told[-1]))
        self._playing = self._go_on(record, self._playing, after)
        cut = bool(record[TRUNCATED].any())
        over = not self._playing
        return record[()], float(record[REWARD].sum()), over and not cut, over and cut, {}

    @property
    def metadata(self) -> Any:
        """What the env says of itself, for films."""
        return getattr(self._env, "metadata", {})

    def render(self) -> Any:
        """A picture of all."""
        return self._env.render()

    @property
    def layers(self) -> list[Any]:
        """The wrappers of each agent: what they carry from episode to episode is carried."""
        return [agent.outermost for agent in self._played.values()]

    def close(self) -> None:
        """Give back windows."""
        self._env.close()

    def _begin(
        self, agents: Sequence[str], seen: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Their episodes begin, with the game or in the middle of it; gives what they see."""
        shown = {}
        for agent in agents:
            if agent not in self._places:
                raise ValueError(f"{agent} plays, and is none of the env's possible agents")
            k = self._places[agent]
            first = _of(agent, "observation", seen), infos.get(agent, {})
            shown[agent] = self._played[agent].begins(self._seed_for(k), *first)
            self._total[k], self._length[k] = 0.0, 0
            self._begun += 1
        return shown

    def _get(self, record: Array, chosen: Mapping[str, Any], told: Any) -> dict[str, Any]:
        """What each agent got for its action; gives what they see."""
        seen, rewards, *ends, infos = told
        fields = [record[name] for name in (ACTED, REWARD, TERMINATED, TRUNCATED)]
        shown = {}
        for agent, action in chosen.items():
            own_reward = _of(agent, "reward", rewards)
            flags = (end.get(agent, False) for end in ends)
            got = _of(agent, "observation", seen), own_reward, *flags, infos.get(agent, {})
            shown[agent], *values, _ = self._played[agent].sees(action, got)
            self._count(agent, own_reward, values[0])
            for field, value in zip(fields, (True, *values), strict=True):
                field[self._places[agent]] = value
        return shown

    def _count(self, agent: str, own_reward: Any, reward: Any) -> None:
        """One more step of its episode; `own_reward` is that without wrappers."""
        for value in (own_reward, reward):
            if not math.isfinite(value):
                raise ValueError(f"{agent}: the reward is {value!r}; it must be a finite number")
        k = self._places[agent]
        self._total[k] += float(own_reward)
        self._length[k] += 1

    def _show(self, record: Array, shown: Mapping[str, Any]) -> None:
        """What these agents see, and their episodes so far."""
        try:
            rows = check_observations([*shown.values()], self.agents.obs, self._obs_dtype)
        except InvalidOutputError as bad:
            raise ValueError(f"{[*shown][bad.k]}: {bad}") from bad
        at = [self._places[agent] for agent in shown]
        if not self._leaves:
            record[SEEN][at] = rows
        for leaf, name in self._leaves:
            record[name][at] = rows[leaf]
        record[TOTAL], record[LENGTH] = self._total, self._length

    def _go_on(self, record: Array, before: Sequence[str], after: Sequence[str]) -> list[str]:
        """Who plays on; nobody, where the game is over."""
        ended = record[TERMINATED] | record[TRUNCATED]
        over = {agent for agent in before if ended[self._places[agent]]}
        gone = set(before).difference(over, after)
        if gone:
            raise ValueError(f"{min(gone)} plays no more, and was neither terminated nor truncated")
        on = [agent for agent in after if agent not in over]
        if on and over.intersection(after):
            raise ValueError(
                f"{min(over.intersection(after))}: its episode has ended, and it plays on"
            )
        if self._steps == self._most:
            record[TRUNCATED] |= record[ACTED] & ~ended
            return []
        record[PLAYS][[self._places[agent] for agent in on]] = True
        return on

    def _seed_for(self, k: int) -> int | None:
        """What an agent's wrappers draw in an episode follows from its own seed."""
        if self._seed is None:
            return None
        digest = hashlib.blake2b(b"%d/%d/%d" % (self._seed, k, self._begun), digest_size=4).digest()
        return int.from_bytes(digest, "little") >> 1


def _of(agent: str, what: str, told: Mapping[str, Any]) -> Any:
    if agent not in told:
        raise ValueError(f"{agent} plays, and the env gives no {what} for it")
    return told[agent]
