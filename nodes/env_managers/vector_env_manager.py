"""Env managers over pools that step many envs at once: gymnasium's vector envs, and EnvPool."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.config import param
from flowrl.core.errors import spelling_hint
from flowrl.core.node import Facts, Surroundings, UnsoundError
from flowrl.nodes.env_managers.env_manager import EnvManager
from flowrl.nodes.envs.entry_points import import_package
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.spec import (
    EnvSpec,
    env_part,
    failures_as_unsound,
    observation_columns,
    space_column,
)
from flowrl.nodes.envs.steps import COLUMNS, Steps, Timestep
from flowrl.nodes.observations import NestedColumns, ObsColumns


class VectorEnvManager(EnvManager):
    """A pool of gymnasium's: all its envs in one computation.

    A pool begins an env's next episode in the step *after* the one that ended it, and takes no
    notice of that step's action: this step of that env is told as void (`Steps.failed`).
    """

    class Config(EnvManager.Config):
        pass

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Linked nodes are told an `EnvSpec`."""
        obs, action = cls.columns(config)
        why = cls.nondeterministic(config)
        return Facts(service=EnvSpec(obs, action, config.count), nondeterministic=why)

    @classmethod
    def columns(cls, config: Any) -> tuple[ObsColumns, Column]:
        """Of one env's observations and actions."""
        with failures_as_unsound():
            pool = cls.make(config, 1, 0)
        try:
            obs, action = cls.spaces(pool)
            found = observation_columns(obs), space_column(action, "action")
        finally:
            pool.close()
        if isinstance(found[0], NestedColumns):
            raise UnsoundError("a pool's observations are nested", "use env_manager", "env")
        return found

    @classmethod
    def make(cls, config: Any, count: int, seed: int) -> Any:
        """The pool."""
        gymnasium = import_package("gymnasium", "pip install gymnasium")
        env = _plain(config)
        spec = gymnasium.registry.get(env.id)
        if spec is None or spec.vector_entry_point is None:
            have = {k for k, v in gymnasium.registry.items() if v.vector_entry_point}
            raise UnsoundError(
                f"gymnasium has no vector env '{env.id}'",
                f"{spelling_hint(env.id, have)}; all envs run in every other kind of env manager",
                "env.id",
            )
        mode = "vector_entry_point"
        return gymnasium.make_vec(env.id, num_envs=count, vectorization_mode=mode, **env.kwargs)

    @classmethod
    def spaces(cls, pool: Any) -> tuple[Any, Any]:
        """Of one of its envs."""
        return pool.single_observation_space, pool.single_action_space

    def setup(self) -> None:
        """The pool is made at the first reset."""
        self._part = env_part(self.config.env)
        self._obs_column, self._action_column = self.columns(self.config)
        self._obs_dtype = np.dtype(self._obs_column.dtype)
        self._action_dtype = np.dtype(self._action_column.dtype)
        self._spec = EnvSpec(self._obs_column, self._action_column, self.config.count)
        self._ids: Sequence[int] = range(self.config.count)
        self._quota: int | None = None
        self._by_hand: Array | None = None
        self._pool: Any = None
        self._everyone = np.arange(self.config.count)
        self._none = bytes(self.config.count)  # flags of a step in which nothing ends
        self.seed(self.ctx.seed_for("episodes"), self.config.dynamic_seeds)

    def reset(self) -> Array:
        """Begin a new episode in each env; gives the first observations (B, …)."""
        self._accounts.restart()
        seed = self._accounts.begin(0)
        obs = self._begin(seed)
        self._over: Array | None = None  # the envs that ended in the step before, if any did
        self._sent: Array | None = None
        return np.array(obs, self._obs_dtype)

    def _begin(self, seed: int) -> Any:
        if self._pool is None:
            self._pool = self.make(self.config, self.config.count, seed)
        return self._pool.reset(seed=seed)[0]

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, each with its row of `actions` (B, …)."""
        self._refuse_unbegun()
        if ids is not None:
            self._all(np.asarray(ids))
        return self._step(self._acts(actions, self.config.count))

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, which must be all."""
        self._refuse_unbegun()
        if self._sent is not None:
            raise ValueError("env 0 is being stepped; receive it before it is sent again")
        order = self._all(ids)
        acts = self._acts(actions, len(ids))
        self._sent = np.empty_like(acts)
        self._sent[order] = acts

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of all envs."""
        if self._sent is None:
            raise ValueError("env 0 was not sent; send it before it is received")
        order = self._everyone if ids is None else self._all(ids)
        acts, self._sent = self._sent, None
        steps = self._step(acts)
        if ids is None or np.array_equal(order, self._everyone):
            return order, steps
        place = {int(env): k for k, env in enumerate(order)}
        broken = sorted(place[k] for k in steps.failed)
        taken = {name: getattr(steps, name)[order] for name in COLUMNS}
        return order, steps._replace(**taken, failed=broken)

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """By hand: a pool leaves nobody out, so envs that are done go on with anyone's action, untold."""
        ids = self._named(actions)
        every = sorted({*ids, *filter(self._is_done, self._ids)})
        self.send(np.array(every), np.array([actions.get(i, actions[ids[0]]) for i in every]))
        told = self._timesteps(*self.recv(np.array(every)))
        return {i: told[i] for i in ids}

    def _refuse_unbegun(self) -> None:
        if self._pool is None:
            raise ValueError("the envs have not begun; call reset() first")

    def _all(self, ids: Array) -> Array:
        at = np.asarray(ids)
        if len(at) != self.config.count or len(set(at.tolist())) != len(at):
            raise ValueError(
                f"envs {at.tolist()} were named; a pool steps all its {self.config.count} at once"
            )
        return at

    def _step(self, actions: Array) -> Steps:
        """(For few envs the pool takes microseconds: every word here costs.)"""
        obs, reward, terminated, truncated, _ = self._call(actions)
        if obs.dtype != self._obs_dtype:
            obs = obs.astype(self._obs_dtype)
        if reward.dtype != np.float32:
            reward = reward.astype(np.float32)
        accounts, void = self._accounts, self._over
        accounts.count_steps(None, reward)
        if void is not None:
            accounts.forget(void)
        over = self._ends(terminated, truncated)
        if over is None and void is None:
            return Steps(obs, reward, terminated, truncated, obs, [])
        self._over = over
        episodes = [] if over is None else accounts.end_several(over)
        broken = () if void is None else void.tolist()
        return Steps(obs, reward, terminated, truncated, obs, episodes, broken)

    def _ends(self, terminated: Array, truncated: Array) -> Array | None:
        """The envs whose episodes end, if any do."""
        none = self._none
        if truncated.tobytes() != none:
            return (terminated | truncated).nonzero()[0]
        return terminated.nonzero()[0] if terminated.tobytes() != none else None

    def _call(self, actions: Array) -> Any:
        return self._pool.step(actions)

    def _save(self) -> dict[str, Any] | None:
        if self._pool is None:
            return None
        raise ValueError(
            f"{type(self).__name__}: a pool cannot be saved: its envs draw their episodes from streams "
            "that cannot be set again; take another kind of env manager, or begin with new episodes"
        )

    def close(self) -> None:
        """Close the pool; a later reset makes another."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class EnvPoolEnvManager(VectorEnvManager):
    """A pool of EnvPool's: envs in C++, in threads of its own."""

    class Config(EnvManager.Config):
        num_threads: int = param(0, "threads of the pool; 0: one a core", ge=0)

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Its envs are seeded once, when the pool is made."""
        return "EnvPool's envs draw episodes from streams of their own, which cannot be set again"

    @classmethod
    def make(cls, config: Any, count: int, seed: int) -> Any:
        """The pool."""
        env, envpool = _plain(config), import_package("envpool", "pip install envpool")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of its spaces' bounds, in another precision
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
        """Of one of its envs."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pool.observation_space, pool.action_space

    def _begin(self, seed: int) -> Any:
        if not self.config.dynamic_seeds:
            self.close()  # the only way to the first episodes again
        if self._pool is None:
            self._pool = self.make(self.config, self.config.count, seed)
            self._takes = self.spaces(self._pool)[1].dtype
        return self._pool.reset()[0]

    def _call(self, actions: Array) -> Any:
        return self._pool.step(actions.astype(self._takes, copy=False))


def _plain(config: Any) -> Any:
    """The env's parameters; a pool has no place for wrappers."""
    if config.env is None:
        raise UnsoundError("no env is given", "write `env: {id: CartPole-v1}`", "env")
    part = env_part(config.env)
    if type(part) is not Gymnasium:  # others, too, may have an id: it names something else
        what = f"a pool is made by an id of its own, and the env is a {type(part).__name__}"
        raise UnsoundError(what, "give Gymnasium(id=…), or take another kind of env manager", "env")
    env = part.config
    for name in ("wrappers", "each"):
        if getattr(env, name, None):
            raise UnsoundError(
                f"a pool's envs have no {name}", "use another kind of env manager", f"env.{name}"
            )
    if getattr(env, "max_episode_steps", None):
        return _with_limit(env)
    return env


def _with_limit(env: Any) -> Any:
    kwargs = {**env.kwargs, "max_episode_steps": env.max_episode_steps}
    return env.model_copy(update={"kwargs": kwargs})
