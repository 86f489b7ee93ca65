"""The env manager that steps its envs one after another, in the thread of whoever calls it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from flowrl.batch import Array
from flowrl.config import Config as BaseConfig
from flowrl.config import param, part
from flowrl.node import Facts, Known, Node
from flowrl.nodes.envs.checks import Bad, observations, rewards
from flowrl.nodes.envs.env_error import EnvError
from flowrl.nodes.envs.spec import EnvSpec, columns_of, ready
from flowrl.nodes.envs.steps import Episode, Steps, Timestep
from flowrl.nodes.observations import Nested
from flowrl.ports import Service

RECENT_STEPS = 10  # whose actions an error shows


class BaseEnvManager(Node):
    """Some envs of one kind; an env whose episode ends begins the next in the same step."""

    serve = Service(
        "env_manager",
        methods=("spec", "reset", "advance", "send", "recv"),
        values=(EnvSpec, Nested, Steps, Episode),
    )

    class Config(BaseConfig):
        env: Any = part("env", "what to make", shared="env", default="gymnasium")
        count: int = param(8, "envs side by side", ge=1)
        dynamic_seeds: bool = param(
            True, "a reset goes on to new episodes; false: it begins the same list of them again"
        )

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        """Linked nodes are told an `EnvSpec`."""
        return Facts(service=EnvSpec(*columns_of(config.env), config.count))

    def setup(self) -> None:
        """Envs are made at the first reset."""
        self._part = ready(self.config.env)
        self._obs_column, self._action_column = columns_of(self._part)
        self._obs_dtype = np.dtype(self._obs_column.dtype)
        self._ids: Sequence[int] = range(self.config.count)
        self._envs: list[Any] = []
        self._quota: int | None = None
        self.seed(self.ctx.seed_for("episodes"), self.config.dynamic_seeds)

    def spec(self) -> EnvSpec:
        """The columns of observations and actions, and how many envs there are."""
        return EnvSpec(self._obs_column, self._action_column, self.config.count)

    def seed(self, seed: int, dynamic_seeds: bool = True) -> None:
        """From the next reset on, the seed of env i's episode k follows from `seed`, i and k."""
        self._seed, self._dynamic = seed, dynamic_seeds
        self._begun = np.zeros(self.config.count, np.int64)

    def reset(self) -> Array:
        """Begin a new episode in each env; gives the first observations (B, …)."""
        if not self._envs:
            before = self.ctx.replica * self.config.count
            self._envs = [self._part.make(before + index) for index in self._ids]
            self._step_one = [env.step for env in self._envs]
        if not self._dynamic:
            self._begun[:] = 0
        count = self.config.count
        self._totals, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._ended = np.zeros(count, np.int64)
        self._seeds = [0] * count  # of the episodes that are under way
        self._recent: deque[tuple[Sequence[int], Sequence[Any]]] = deque(maxlen=RECENT_STEPS)
        self._sent: dict[int, Any] = {}
        self._obs = self._begin(self._ids)
        return self._obs

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, or those of `ids`, each with its row of `actions` (B, …)."""
        at = self._ids if ids is None else ids
        acts = list(actions)  # numpy's scalars: gymnasium's Discrete checks them faster than ints
        if len(acts) != len(at):
            raise ValueError(f"{len(acts)} actions for {len(at)} envs; give each env one")
        self._refuse_sent(at)
        return self._advance(at, acts)

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, each with its row of `actions`; `recv` gives what came of it."""
        at = np.asarray(ids).tolist()
        if len(actions) != len(at):
            raise ValueError(f"{len(actions)} actions for {len(at)} envs; give each env one")
        self._refuse_sent(at)
        self._sent.update(zip(at, actions, strict=True))

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order; without `ids`, of all that were sent, as sent.

        At least `least` of them: here none waits for another, so all are always ready.
        """
        at = list(self._sent) if ids is None else np.asarray(ids).tolist()
        if missing := set(at) - self._sent.keys():
            raise ValueError(f"env {min(missing)} was not sent; send it before it is received")
        steps = self._advance(at, [self._sent.pop(index) for index in at])
        return np.array(at, np.int64), steps

    def _refuse_sent(self, at: Sequence[int]) -> None:
        if self._sent and (twice := self._sent.keys() & set(at)):
            raise ValueError(
                f"env {min(twice)} is being stepped; receive it before it is sent again"
            )

    def _advance(self, at: Sequence[int], acts: list[Any]) -> Steps:
        seen, given, terminated, truncated = self._step(at, acts)
        next_obs, reward = self._check(at, seen, given)
        self._count(at, reward)
        obs, episodes = next_obs, []
        if any(terminated) or any(truncated):
            ends = [k for k in range(len(at)) if terminated[k] or truncated[k]]
            obs, episodes = self._renew(at, ends, next_obs)
        self._keep(obs, at)
        final, cut = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return Steps(obs, reward.astype(np.float32), final, cut, next_obs, episodes)

    def _step(self, at: Sequence[int], acts: list[Any]) -> tuple[list[Any], ...]:
        self._recent.append((at, acts))
        seen, given, terminated, truncated = [], [], [], []
        step_one = self._step_one
        index = 0
        try:
            for index, act in zip(at, acts):  # noqa: B905 (lengths are checked; this loop is hot)
                obs, reward, final, cut, _ = step_one[index](act)
                seen.append(obs)
                given.append(reward)
                terminated.append(final)
                truncated.append(cut)
        except Exception as broken:
            self._fail(index, 1, f"step raised {type(broken).__name__}: {broken}", broken)
        return seen, given, terminated, truncated

    def _check(self, at: Sequence[int], seen: list[Any], given: list[Any]) -> tuple[Array, Array]:
        try:
            return observations(seen, self._obs_column, self._obs_dtype), rewards(given)
        except Bad as bad:
            self._fail(at[bad.k], 1, str(bad), bad)

    def _count(self, at: Sequence[int], reward: Array) -> None:
        if at is self._ids:  # without the index it is twice as fast
            self._totals += reward
            self._lengths += 1
        else:
            self._totals[at] += reward
            self._lengths[at] += 1

    def _renew(
        self, at: Sequence[int], ends: list[int], next_obs: Array
    ) -> tuple[Array, list[Episode]]:
        """End the episodes of the `ends`-th envs and begin the next."""
        episodes = [self._end(at[k]) for k in ends]
        obs = next_obs.copy()
        obs[ends] = self._begin([at[k] for k in ends])
        return obs, episodes

    def _keep(self, obs: Array, at: Sequence[int]) -> None:
        if at is self._ids:
            self._obs = obs
        else:
            self._obs = self._obs.copy()  # whoever was given the old one may still hold it
            self._obs[at] = obs

    def _begin(self, at: Sequence[int]) -> Array:
        seen = [self._reset_one(index) for index in at]
        try:
            return observations(seen, self._obs_column, self._obs_dtype)
        except Bad as bad:
            self._fail(at[bad.k], 0, str(bad), bad)

    def _reset_one(self, index: int) -> Any:
        episode = f"{self._seed}/{index}/{self._begun[index]}".encode()
        digest = hashlib.blake2b(episode, digest_size=4).digest()
        seed = int.from_bytes(digest, "little") >> 1  # 31 bits: some envs take no more
        self._begun[index] += 1
        self._seeds[index] = seed
        self._totals[index], self._lengths[index] = 0.0, 0
        try:
            return self._envs[index].reset(seed=seed)[0]
        except Exception as broken:
            self._fail(index, 0, f"reset raised {type(broken).__name__}: {broken}", broken)

    def _end(self, index: int) -> Episode:
        self._ended[index] += 1
        total = getattr(self._envs[index], "unwrapped_return", self._totals[index])
        return Episode(int(index), float(total), int(self._lengths[index]))

    def _fail(self, index: int, stepping: int, what: str, cause: Exception) -> NoReturn:
        step = int(self._lengths[index]) + stepping
        taken = [acts[list(at).index(index)] for at, acts in self._recent if index in at]
        shown = taken[-step:] if step else []
        name = getattr(self._part.config, "id", type(self._part).__name__)
        raise EnvError(name, index, self._seeds[index], step, shown, what) from cause

    def launch(self, episodes: int | None = None) -> None:
        """By hand: begin; an env is done when it has played so many episodes (None: never)."""
        self._quota = episodes
        self.reset()

    @property
    def ready_obs(self) -> dict[int, Array]:
        """By hand: the observation of every env that waits for an action."""
        return {i: self._obs[i] for i in self._ids if not self._is_done(i)}

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """By hand: step the envs that are named; observations to act on next are in `ready_obs`."""
        ids = sorted(actions)
        over = [i for i in ids if self._is_done(i)]
        if over:
            raise ValueError(f"env {over[0]} is done; step only those of ready_obs")
        steps = self.advance(np.array([actions[i] for i in ids]), ids)
        ended = {episode.env_id: episode for episode in steps.episodes}
        rows = zip(steps.next_obs, *(a.tolist() for a in steps[1:4]), strict=True)
        return {i: Timestep(*row, ended.get(i)) for i, row in zip(ids, rows, strict=True)}

    @property
    def done(self) -> bool:
        """By hand: whether every env has played its episodes."""
        return all(map(self._is_done, self._ids))

    def _is_done(self, index: int) -> bool:
        return self._quota is not None and self._ended[index] >= self._quota

    def close(self) -> None:
        """Close the envs; a later reset makes new ones."""
        for env in self._envs:
            env.close()
        self._envs = []
