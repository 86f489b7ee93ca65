"""Agents that share a policy: each agent of an env is a row of its own for collectors and evaluators.

To its manager an env with agents is one env. It is stepped, fails, is saved and is reset as a whole, and its
observation is one record of what all its agents observed and received. `AgentRows` turns rows of envs into rows of
agents: agent k of env i is row i * N + k. All that this needs is in the records, so agent rows have no state, and
managers know nothing of agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.envs.agent_columns import (
    ACTED,
    ACTIVE,
    COMPLETED,
    INFO,
    LENGTH,
    OBS,
    RETURN,
    REWARD,
    TERMINATED,
    TRUNCATED,
)
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Episode, Steps
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.observations import columns_under


def as_agent_rows(envs: Any) -> Any:
    """A manager with a row for each env, or for each agent that acts by itself."""
    return AgentRows(envs) if envs.spec().records and not isinstance(envs, AgentRows) else envs


class AgentRows:
    """The agents of a manager's envs. Agents of one env step together and have adjacent rows, in order."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        self._spec: EnvSpec = envs.spec()
        self._dtype = np.dtype(self._spec.obs.dtype)
        blank = np.zeros(self._spec.obs.shape, self._dtype)
        if blank.dtype.names is not None and ACTION_MASK in blank.dtype.names:
            blank[ACTION_MASK] = 1  # a policy must find an allowed action
        self._blank = blank

    def spec(self) -> EnvSpec:
        """One agent's columns, the number of agents in all envs, and in each."""
        return self._spec

    def seed(self, seed: int, dynamic_seeds: bool = True, first_env: int = 0) -> None:
        """Seed the episodes from the next reset on, as `EnvManager.seed` does; `first_env` counts envs."""
        self.envs.seed(seed, dynamic_seeds, first_env)

    def set_reset_options(self, options: Mapping[str, float]) -> None:
        """Give each env these options from its next episode on."""
        self.envs.set_reset_options(options)

    def reset(self) -> Array:
        """Begin a new episode in each env; return each agent's first observation (B, …)."""
        return self.obs_to_act_on(self.envs.reset())

    def advance(self, actions: Array, ids: Sequence[int] | Array | None = None) -> Steps:
        """Step all envs, or those whose agents these are."""
        rows = np.arange(self._spec.count) if ids is None else np.asarray(ids)
        env_ids = self._env_ids(rows)
        env_actions = self._env_actions(actions, len(rows))
        steps = self.envs.advance(env_actions, None if ids is None else env_ids)
        return self._agent_steps(rows, steps)

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these agents; of an env, all or none."""
        rows = np.asarray(ids)
        self.envs.send(self._env_ids(rows), self._env_actions(actions, len(rows)))

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these agents; without `ids`, of at least `least` that are ready."""
        return self.convert_received(self.envs.recv(*self.recv_arguments(ids, least)))

    def recv_arguments(self, ids: Array | None, least: int) -> tuple[Array | None, int]:
        """The arguments of the manager's `recv` that correspond to these of `recv`."""
        env_ids = None if ids is None else self._env_ids(np.asarray(ids))
        return env_ids, -(-least // self._spec.agents)

    def convert_received(self, received: tuple[Array, Steps]) -> tuple[Array, Steps]:
        """Convert the result of the manager's `recv` to agents and their steps."""
        env_ids, steps = received
        agents = np.arange(self._spec.agents)
        rows = (env_ids[:, None] * self._spec.agents + agents).reshape(-1)
        return rows, self._agent_steps(rows, steps)

    def _env_ids(self, rows: Array) -> Array:
        n = self._spec.agents
        env_ids: Array = rows[::n] // n
        if len(rows) % n or (rows != (env_ids[:, None] * n + np.arange(n)).reshape(-1)).any():
            raise ValueError(
                f"env manager: the ids are {rows.tolist()}; the {n} agents of an env step together; give "
                "all of them, adjacent and in order"
            )
        return env_ids

    def _env_actions(self, actions: Array, count: int) -> Array:
        array = np.asarray(actions)
        if len(array) != count:
            raise ValueError(
                f"env manager: {len(array)} actions for {count} agents; give one for each"
            )
        n = self._spec.agents
        return array.reshape(count // n, n, *array.shape[1:])

    def _agent_steps(self, rows: Array, steps: Steps) -> Steps:
        records, n = steps.next_obs, self._spec.agents
        acted, terminated, truncated = (
            records[name].reshape(-1) for name in (ACTED, TERMINATED, TRUNCATED)
        )
        turns = COMPLETED in (records.dtype.names or ())
        completed = records[COMPLETED].reshape(-1) if turns else acted
        returns, lengths = records[RETURN].reshape(-1), records[LENGTH].reshape(-1)
        ended = np.flatnonzero(terminated | truncated).tolist()
        failed = [row for k in steps.failed for row in range(k * n, k * n + n)]
        info = {
            name: np.array(records[INFO + name])
            .view(column.dtype)
            .reshape(len(rows), *column.shape)
            for name, column in self._spec.info.items()
        }
        return Steps(
            self.obs_to_act_on(steps.obs),
            records[REWARD].reshape(-1).astype(np.float32),
            terminated,
            truncated,
            self._agent_obs(records),
            [Episode(int(rows[k]), float(returns[k]), int(lengths[k])) for k in ended],
            failed,
            np.setdiff1d(np.flatnonzero(~completed), failed),
            info,
            acted if turns else None,
        )

    def obs_to_act_on(self, records: Array) -> Array:
        """Each agent's observation; blank for agents that are not active."""
        obs = self._agent_obs(records)
        obs[~records[ACTIVE].reshape(-1)] = self._blank
        return obs

    def _agent_obs(self, records: Array) -> Array:
        rows = records.size * self._spec.agents
        if self._dtype.names is None:
            return np.array(records[OBS]).reshape(rows, *self._spec.obs.shape)
        obs = np.empty(rows, self._dtype)
        for name, leaf in zip(self._dtype.names, columns_under(OBS, self._spec.obs), strict=True):
            obs[name] = records[leaf].reshape(obs[name].shape)
        return obs
