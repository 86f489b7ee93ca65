"""Env managers of env pools, which step all their envs in one call: gymnasium's vector envs, and EnvPool."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.config import param
from flowrl.core.errors import spelling_hint
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.nodes.env_managers.env_manager import EnvManager, config_for_clients
from flowrl.nodes.envs.entry_points import import_package
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.info import info_columns, pool_info
from flowrl.nodes.envs.spec import (
    EnvSpec,
    env_part,
    failures_as_unsound,
    observation_columns,
    space_column,
)
from flowrl.nodes.envs.steps import COLUMNS, NO_INFO_COLUMNS, Steps, Timestep
from flowrl.nodes.observations import NestedColumns, ObsColumns


class VectorEnvManager(EnvManager):
    """A vector env of gymnasium: all envs in one computation.

    A pool begins an env's next episode in the step *after* the one that ended the last, and ignores the action of that
    step. So this row is invalid (`Steps.failed`).
    """

    class Config(EnvManager.Config):
        pass

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The facts: linked nodes get an `EnvSpec`."""
        config = config_for_clients(config, surroundings.client_roles)
        return Facts(service=cls.spec_of(config), nondeterministic=cls.nondeterministic(config))

    @classmethod
    def spec_of(cls, config: Any) -> EnvSpec:
        """The spec of a pool with these parameters."""
        obs, action = cls.columns(config)
        info = info_columns(env_part(config.env))
        return EnvSpec(
            obs, action, config.count, together=config.count, info=info, takes_options=False
        )

    @classmethod
    def columns(cls, config: Any) -> tuple[ObsColumns, Column]:
        """The columns of one env's observations and actions; a pool of one env is made to find them."""
        with failures_as_unsound():
            pool = cls.make(config, 1, 0)
        try:
            obs, action = cls.spaces(pool)
            found = observation_columns(obs), space_column(action, "action")
        finally:
            pool.close()
        if isinstance(found[0], NestedColumns):
            raise UnsoundError(
                "the pool has nested observations", "use another kind of env manager", "env"
            )
        return found

    @classmethod
    def make(cls, config: Any, count: int, seed: int) -> Any:
        gymnasium = import_package("gymnasium", "pip install gymnasium")
        env = _pool_env(config)
        spec = gymnasium.registry.get(env.id)
        if spec is None or spec.vector_entry_point is None:
            have = {k for k, v in gymnasium.registry.items() if v.vector_entry_point}
            raise UnsoundError(
                f"gymnasium has no vector env '{env.id}'",
                f"{spelling_hint(env.id, have)}; every other kind of env manager can run any env",
                "env.id",
            )
        mode = "vector_entry_point"
        return gymnasium.make_vec(env.id, num_envs=count, vectorization_mode=mode, **env.kwargs)

    @classmethod
    def spaces(cls, pool: Any) -> tuple[Any, Any]:
        """The spaces of one env's observations and actions."""
        return pool.single_observation_space, pool.single_action_space

    def setup(self) -> None:
        """Prepare everything but the pool, which is made at the first reset."""
        self.config = config_for_clients(self.config, self.ctx.client_roles)
        self._part = env_part(self.config.env)
        self._spec = self.spec_of(self.config)
        self._obs_column, self._action_column = self._spec.obs, self._spec.action
        self._obs_dtype = np.dtype(self._obs_column.dtype)
        self._action_dtype = np.dtype(self._action_column.dtype)
        self._ids: Sequence[int] = range(self.config.count)
        self._episode_quota: int | None = None
        self._reset_options = ""
        self._manual_obs: Array | None = None
        self._pool: Any = None
        self._all_ids = np.arange(self.config.count)
        self._no_ends = bytes(self.config.count)  # the flags of a step in which no episode ends
        self.seed(self.ctx.seed_for("episodes"), self.config.dynamic_seeds)

    def _apply_reset_options(self) -> None:
        raise ValueError(
            f"{type(self).__name__}: a pool begins the episodes of its envs itself, without options of `reset`; use "
            "another kind of env manager"
        )

    def reset(self) -> Array:
        """Begin a new episode in each env; return the first observations (B, …)."""
        self.statistics.restart()
        seed = self.statistics.start_episode(0)
        obs = self._reset_pool(seed)
        self._ended: Array | None = None  # the envs whose episodes ended in the last step, if any
        self._sent: Array | None = None
        return np.array(obs, self._obs_dtype)

    def _reset_pool(self, seed: int) -> Any:
        if self._pool is None:
            self._pool = self.make(self.config, self.config.count, seed)
        return self._pool.reset(seed=seed)[0]

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, each with its row of `actions` (B, …)."""
        self._require_begun()
        if ids is not None:
            self._require_all(np.asarray(ids))
        return self._step_pool(self._convert_actions(actions, self.config.count))

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, which must be all."""
        self._require_begun()
        if self._sent is not None:
            raise ValueError("env 0: its step is pending; receive it before sending again")
        order = self._require_all(ids)
        acts = self._convert_actions(actions, len(ids))
        self._sent = np.empty_like(acts)
        self._sent[order] = acts

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of all envs."""
        if self._sent is None:
            raise ValueError("env 0: it was not sent; send it before receiving it")
        order = self._all_ids if ids is None else self._require_all(ids)
        acts, self._sent = self._sent, None
        steps = self._step_pool(acts)
        if ids is None or np.array_equal(order, self._all_ids):
            return order, steps
        place = {int(env): k for k, env in enumerate(order)}
        failed = sorted(place[k] for k in steps.failed)
        columns = {name: getattr(steps, name)[order] for name in COLUMNS}
        info = {name: array[order] for name, array in steps.info.items()}
        return order, steps._replace(**columns, failed=failed, info=info)

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """Step the envs of these ids. A pool steps all envs, so those that are done get some action, too."""
        ids = self._ids_to_step(actions)
        all_ids = sorted({*ids, *filter(self._is_done, self._ids)})
        self.send(np.array(all_ids), np.array([actions.get(i, actions[ids[0]]) for i in all_ids]))
        timesteps = self._record_steps(*self.recv(np.array(all_ids)))
        return {i: timesteps[i] for i in ids}

    def _require_begun(self) -> None:
        if self._pool is None:
            raise ValueError("env manager: no episode has begun; call reset() first")

    def _require_all(self, ids: Array) -> Array:
        at = np.asarray(ids)
        if len(at) != self.config.count or len(set(at.tolist())) != len(at):
            raise ValueError(
                f"env manager: the ids are {at.tolist()}; a pool steps all its {self.config.count} envs "
                "at once; give all of them"
            )
        return at

    def _step_pool(self, actions: Array) -> Steps:
        """Step all envs. (A small pool takes microseconds, so this does as little as it can.)"""
        obs, reward, terminated, truncated, info = self._call_step(actions)
        if obs.dtype != self._obs_dtype:
            obs = obs.astype(self._obs_dtype)
        if reward.dtype != np.float32:
            reward = reward.astype(np.float32)
        statistics, begun = self.statistics, self._ended
        statistics.count_steps(None, reward)
        if begun is not None:
            statistics.discard_steps(begun)
        ended = self._ended_envs(terminated, truncated)
        listed = self._spec.info
        columns = pool_info(info, listed, self.config.count) if listed else NO_INFO_COLUMNS
        if ended is None and begun is None:
            return Steps(obs, reward, terminated, truncated, obs, [], info=columns)
        self._ended = ended
        episodes = [] if ended is None else statistics.finished_episodes(ended)
        failed = () if begun is None else begun.tolist()
        return Steps(obs, reward, terminated, truncated, obs, episodes, failed, info=columns)

    def _ended_envs(self, terminated: Array, truncated: Array) -> Array | None:
        """The envs whose episodes end, if any do."""
        no_ends = self._no_ends
        if truncated.tobytes() != no_ends:
            return (terminated | truncated).nonzero()[0]
        return terminated.nonzero()[0] if terminated.tobytes() != no_ends else None

    def _call_step(self, actions: Array) -> Any:
        return self._pool.step(actions)

    def _save_envs(self) -> dict[str, Any] | None:
        if self._pool is None:
            return None
        raise ValueError(
            f"{type(self).__name__}: a pool cannot be saved: its envs draw episodes from random streams that "
            "cannot be restored; use another kind of env manager, or begin with new episodes"
        )

    def close(self) -> None:
        """Close the pool. A later reset makes another."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class EnvPoolEnvManager(VectorEnvManager):
    """A pool of EnvPool: envs in C++, with threads of their own."""

    class Config(EnvManager.Config):
        num_threads: int = param(0, "threads of the pool; 0: one per core", ge=0)

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Why two runs may differ: the envs are seeded once, when the pool is made."""
        return "EnvPool's envs draw episodes from random streams that cannot be set"

    @classmethod
    def make(cls, config: Any, count: int, seed: int) -> Any:
        env, envpool = _pool_env(config), import_package("envpool", "pip install envpool")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the precision of bounds
                return envpool.make(
                    env.id,
                    env_type="gymnasium",
                    num_envs=count,
                    seed=seed,
                    num_threads=config.num_threads,
                    **env.kwargs,
                )
        except (AssertionError, KeyError) as unknown:
            known = ", ".join(envpool.list_all_envs()[:8])
            raise UnsoundError(
                f"EnvPool has no env '{env.id}'", f"it has {known}, …", "env.id"
            ) from unknown

    @classmethod
    def spaces(cls, pool: Any) -> tuple[Any, Any]:
        """The spaces of one env's observations and actions."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pool.observation_space, pool.action_space

    def _reset_pool(self, seed: int) -> Any:
        if not self.statistics.dynamic_seeds:
            self.close()  # only a new pool plays the first episodes again
        if self._pool is None:
            self._pool = self.make(self.config, self.config.count, seed)
            self._pool_action_dtype = self.spaces(self._pool)[1].dtype
        return self._pool.reset()[0]

    def _call_step(self, actions: Array) -> Any:
        return self._pool.step(actions.astype(self._pool_action_dtype, copy=False))


def _pool_env(config: Any) -> Any:
    """The parameters of the env. Refuse what a pool cannot have, such as wrappers."""
    if config.env is None:
        raise UnsoundError("no env is given", "write `env: {id: CartPole-v1}`", "env")
    part = env_part(config.env)
    if type(part) is not Gymnasium:  # the id of another part may name something else
        what = f"a pool is made from an id, and the env is a {type(part).__name__}"
        raise UnsoundError(what, "give Gymnasium(id=…), or use another kind of env manager", "env")
    env = part.config
    for name in ("wrappers", "each"):
        if getattr(env, name, None):
            raise UnsoundError(
                f"a pool's envs cannot have {name}",
                "use another kind of env manager",
                f"env.{name}",
            )
    if isinstance(env.info, list) and env.info:
        what, name = "the entries of a pool's `info` need types", env.info[0]
        raise UnsoundError(what, f"write `info: {{{name}: float32}}`", "env.info")
    if getattr(env, "max_episode_steps", None):
        kwargs = {**env.kwargs, "max_episode_steps": env.max_episode_steps}
        return env.model_copy(update={"kwargs": kwargs})
    return env
