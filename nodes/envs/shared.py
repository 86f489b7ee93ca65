"""A parallel env whose agents act each for itself: what they all saw and got is one record a step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Array
from flowrl.nodes.envs.agents import (
    ACTED,
    LENGTH,
    PLAYS,
    REWARD,
    SEEN,
    TERMINATED,
    TOTAL,
    TRUNCATED,
    Agents,
)
from flowrl.nodes.envs.checks import Bad, observation
from flowrl.nodes.envs.parallel import alike
from flowrl.nodes.envs.spec import column, observed
from flowrl.nodes.envs.wrapped.agents import Agent
from flowrl.nodes.envs.wrappers.wrapper import Wrappers
from flowrl.nodes.observations import leaves

Told = tuple[Any, Any, Any, Any, Any]  # obs, reward, terminated, truncated, info


class Shared:
    """Begins, steps and closes as every env does; ends when nobody plays any more."""

    def __init__(self, env: Any, wrappers: Wrappers, most_steps: int | None) -> None:
        """Each agent is put into `wrappers`; after `most_steps` all who still play are cut off."""
        self._env, self._most = env, most_steps
        self._places = {agent: k for k, agent in enumerate(env.possible_agents)}
        spaces = alike(env, "observation"), alike(env, "action")
        self._played = {agent: Agent(*spaces, wrappers) for agent in self._places}
        seen, done = self._played[env.possible_agents[0]].spaces
        self.agents = Agents(len(self._places), observed(seen), column(done, "action"))
        self._dtype = self.agents.record.dtype
        self._obs_dtype = np.dtype(self.agents.obs.dtype)
        self._leaves = [(leaf, f"{SEEN}/{leaf}") for leaf in leaves(self.agents.obs) if leaf]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Those who play from the beginning begin."""
        seen, infos = self._env.reset(seed=seed, options=options)
        self._seed, self._steps, self._begun = seed, 0, 0
        self._total, self._length = np.zeros(self.agents.count), np.zeros(self.agents.count, int)
        record = np.zeros((), self._dtype)
        for agent in self._env.agents:
            self._begin(record, agent, seen, infos)
        if not self._begun:
            raise ValueError("nobody plays after the reset")
        return record[()], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Those who play act; what is chosen for the others has no effect."""
        before = list(self._env.agents)
        chosen = {agent: action[self._places[agent]] for agent in before}
        acts = {agent: self._played[agent].does(act) for agent, act in chosen.items()}
        seen, rewards, *ends, infos = self._env.step(acts)
        self._steps += 1
        record = np.zeros((), self._dtype)
        for agent in before:
            told = _of(agent, "reward", rewards), *(end.get(agent, False) for end in ends)
            got = _of(agent, "observation", seen), *told, infos.get(agent, {})
            self._count(record, agent, self._played[agent].sees(chosen[agent], got), told[0])
        for agent in self._env.agents:
            if agent not in acts:
                self._begin(record, agent, seen, infos)
        cut = self._end(record, before)
        over = not record[PLAYS].any()
        return record[()], float(record[REWARD].sum()), over and not cut, over and cut, {}

    def close(self) -> None:
        """Give back windows."""
        self._env.close()

    def _begin(
        self, record: Array, agent: str, seen: Mapping[str, Any], infos: Mapping[str, Any]
    ) -> None:
        """An agent's episode begins, with the env's or in the middle of it."""
        if agent not in self._places:
            raise ValueError(f"{agent} plays, and is none of the env's possible agents")
        k = self._places[agent]
        first = _of(agent, "observation", seen), infos.get(agent, {})
        self._write(record, agent, self._played[agent].begins(self._seed_for(k), *first))
        self._total[k] = self._length[k] = 0
        record[PLAYS][k] = True
        self._begun += 1

    def _count(self, record: Array, agent: str, told: Told, own_reward: Any) -> None:
        """What an agent got for its action; `own_reward` is that without wrappers."""
        k = self._places[agent]
        obs, reward, final, cut, _ = told
        self._write(record, agent, obs)
        for value in (own_reward, reward):
            if not math.isfinite(value):
                raise ValueError(f"{agent}: the reward is {value!r}; it must be a finite number")
        self._total[k] += float(own_reward)
        self._length[k] += 1
        values = {ACTED: True, REWARD: reward, TERMINATED: final, TRUNCATED: cut}
        values |= {TOTAL: self._total[k], LENGTH: self._length[k]}
        for name, value in values.items():
            record[name][k] = value

    def _end(self, record: Array, before: list[str]) -> bool:
        """Notes who goes on; gives whether anybody was cut off."""
        ended = record[TERMINATED] | record[TRUNCATED]
        playing = {agent for agent in before if not ended[self._places[agent]]}
        gone = playing.difference(self._env.agents)
        if gone:
            raise ValueError(f"{min(gone)} plays no more, and was neither terminated nor truncated")
        for agent in playing:
            record[PLAYS][self._places[agent]] = True
        if record[PLAYS].any():
            over = set(before).difference(playing).intersection(self._env.agents)
            if over:
                raise ValueError(f"{min(over)}: its episode has ended, and it plays on")
        if self._steps == self._most:
            record[TRUNCATED] |= record[ACTED] & ~ended
            record[PLAYS] = False
        return bool(record[TRUNCATED].any())

    def _write(self, record: Array, agent: str, obs: Any) -> None:
        k = self._places[agent]
        try:
            found = observation(obs, self.agents.obs, self._obs_dtype)
        except Bad as bad:
            raise ValueError(f"{agent}: {bad}") from bad
        if not self._leaves:
            record[SEEN][k] = found
        for leaf, name in self._leaves:
            record[name][k] = found[leaf]

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
