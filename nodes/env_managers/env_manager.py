"""The env manager's contract: what every kind offers to collectors, evaluators, and by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import model_validator

from flowrl.core.batch import Array
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.node import Facts, Node, Surroundings
from flowrl.core.ports import Service
from flowrl.nodes.env_managers.crash import CrashFile
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.envs.agent_rows import as_agent_rows, env_spec
from flowrl.nodes.envs.callables import env_makers
from flowrl.nodes.envs.spec import EnvSpec, env_columns, env_part
from flowrl.nodes.envs.steps import Episode, Steps, Timestep
from flowrl.nodes.observations import NestedColumns


class EnvManager(Node):
    """Some envs of one kind; an env whose episode ends begins the next in the same step.

    A kind defines `reset`, `send`, `recv` and `close`; all else follows from these. One that can be
    saved defines `_save` and `_restore`, too. Rows are of envs; where agents share a policy, `lanes(envs)`
    offers the same by agents, and by hand it is so.
    """

    serve = Service(
        "env_manager",
        methods=("spec", "reset", "advance", "send", "recv"),
        values=(EnvSpec, NestedColumns, Steps, Episode),
    )

    class Config(BaseConfig):
        env: Any = part("env", "what to make", shared="env", default="gymnasium")
        count: int = param(8, "envs side by side", ge=1)
        dynamic_seeds: bool = param(
            True, "a reset goes on to new episodes; false: it begins the same list of them again"
        )

        @model_validator(mode="before")
        @classmethod
        def one_env_a_callable(cls, given: Any) -> Any:
            """By hand, `env` may be a list of functions: then there are as many envs."""
            several = isinstance(given, dict) and isinstance(given.get("env"), list | tuple)
            if not several or not env_makers(given["env"]):
                return given
            made = len(given["env"])
            if given.setdefault("count", made) != made:
                raise ValueError(f"{made} functions for {given['count']} envs; give one for each")
            return given

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Linked nodes are told an `EnvSpec`."""
        why = cls.nondeterministic(config)
        return Facts(service=env_spec(config.env, config.count), nondeterministic=why)

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Why two runs may differ, if they may."""
        return ""

    def setup(self) -> None:
        """Envs are made at the first reset."""
        self._part = env_part(self.config.env)
        self._obs_column, self._action_column = env_columns(self._part)
        self._action_dtype = np.dtype(self._action_column.dtype)
        self._ids: Sequence[int] = range(self.config.count)
        self._known_ids = frozenset(self._ids)
        self._spec = env_spec(self._part, self.config.count)
        self._quota: int | None = None
        self._by_hand: Array | None = None  # the observations to act on, where `launch` was called
        self.seed(self.ctx.seed_for("episodes"), self.config.dynamic_seeds)

    def spec(self) -> EnvSpec:
        """The columns of observations and actions, and how many envs, or agents, there are."""
        return self._spec

    def seed(self, seed: int, dynamic_seeds: bool = True) -> None:
        """From the next reset on, the seed of env i's episode k follows from `seed`, i and k."""
        self._accounts = EpisodeStatistics(self.config.count, seed, dynamic_seeds)

    def reset(self) -> Array:
        """Begin a new episode in each env; gives the first observations (B, …)."""
        raise NotImplementedError

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, each with its row of `actions`; `recv` gives what came of it."""
        raise NotImplementedError

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order; without `ids`, of at least `least` that are ready."""
        raise NotImplementedError

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, or those of `ids`, each with its row of `actions` (B, …)."""
        at = np.arange(self.config.count) if ids is None else np.asarray(ids)
        self.send(at, actions)
        return self.recv(at)[1]

    def _acts(self, actions: Any, count: int) -> Array:
        """Actions as the column says that they are; a value that would change is refused."""
        array = np.asarray(actions)
        wanted = (count, *self._action_column.shape)
        if len(array) != count:
            raise ValueError(f"{len(array)} actions for {count} envs; give each env one")
        if array.dtype == self._action_dtype and array.shape == wanted:
            return array
        if array.dtype.kind not in "biuf":
            raise ValueError(f"an action is {array.flat[0]!r}; it must be {self._action_column}")
        found = array.astype(self._action_dtype)
        exact = array.dtype.kind == "f" and found.dtype.kind == "f"  # fewer digits are no change
        if array.shape != wanted or not (exact or np.array_equal(found, array)):
            raise ValueError(
                f"actions are {array.dtype}{list(array.shape[1:])}; they must be {self._action_column}"
            )
        return found

    def _refuse_to_step(self, ids: Sequence[int], sent: Mapping[int, Any]) -> None:
        """Only envs that there are, each once, and none of those that were sent."""
        chosen = set(ids)
        if len(chosen) == len(ids) and chosen <= self._known_ids and chosen.isdisjoint(sent):
            return
        _refuse_unknown(ids, range(self.config.count))
        twice = min(chosen & sent.keys(), default=None)
        if twice is None:
            raise ValueError(f"envs {list(ids)} are named; name each once")
        raise ValueError(f"env {twice} is being stepped; receive it before it is sent again")

    def _error(
        self,
        index: int,
        seed: int,
        step: int,
        actions: Sequence[Any],
        what: str,
        traced: str = "",
        complete: bool = True,
        timeout_s: float | None = None,
    ) -> EnvError:
        """The error of an env that is not tried again, with its crash file."""
        make = self._make_index(index)
        crash = CrashFile(
            self._part, make, index, seed, step, what, traced, actions, complete, timeout_s
        )
        name = getattr(self._part.config, "id", type(self._part).__name__)
        files = {f"crash-{self.ctx.key}-{index}.json": crash.text()}
        return EnvError(name, index, seed, step, actions, what, files)

    def _make_index(self, index: int) -> int:
        """An env's place among those of all replicas: it may be told apart by that."""
        return int(self.ctx.replica * self.config.count + index)

    # saving

    def state_dict(self) -> dict[str, Any]:
        """Where every env is, as data that any kind can load; no step may be under way."""
        return {
            "accounts": self._accounts.state_dict(),
            "envs": self._save(),
            "launched": None if self._by_hand is None else list(self._ended),
            "quota": self._quota,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. An env that does not come to be where it was is begun anew in its next step,
        which is `broken`; that is counted, and told."""
        self.close()
        self._accounts.load_state_dict(state["accounts"])
        self._quota, self._by_hand = state["quota"], None
        if state["envs"] is not None:
            self._restore(state["envs"])
            if state["launched"] is not None:
                self._ended = list(state["launched"])
                seen, rows = np.array(state["envs"]["seen"]), as_agent_rows(self)
                self._by_hand = seen if rows is self else rows.obs_to_act_on(seen)

    def _save(self) -> dict[str, Any] | None:
        """The envs, as data; None where none has begun."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its envs are saved")

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Make the envs what they were; the accounts are already."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its envs are restored")

    # by hand

    def launch(self, episodes: int | None = None) -> None:
        """By hand: begin; an env is done when it has played so many episodes (None: never).

        Where agents act for themselves, ids are theirs, and an env is done when they all are.
        """
        if episodes is not None and episodes < 1:
            raise ValueError(f"episodes is {episodes}; give 1 or more, or None to play for ever")
        self._quota = episodes
        self._ended = [0] * self.spec().count
        self._by_hand = as_agent_rows(self).reset().copy()

    @property
    def ready_obs(self) -> dict[int, Array]:
        """By hand: the observation of every env, or agent, that waits for an action."""
        if self._by_hand is None:
            raise ValueError("nothing was launched; call launch() first")
        return {i: self._by_hand[i] for i in self._waiting()}

    def _waiting(self) -> list[int]:
        return [i for i in range(self.spec().count) if not self._is_done(i)]

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """By hand: step the envs that are named; observations to act on next are in `ready_obs`."""
        ids, rows = self._named(actions), as_agent_rows(self)
        rows.send(np.array(ids), np.array([actions[i] for i in ids]))
        return self._timesteps(*rows.recv(self._asked(ids)))

    def _named(self, actions: Mapping[int, Any]) -> list[int]:
        """Whose actions these are: of envs that may be stepped."""
        if self._by_hand is None:
            raise ValueError("nothing was launched; call launch() first")
        ids = list(actions)
        if not ids:
            raise ValueError("no action is given; give one for each env of ready_obs, or some")
        _refuse_unknown(ids, range(self.spec().count))
        ids.sort()
        over = [i for i in ids if self._is_done(i)]
        if over:
            raise ValueError(f"env {over[0]} is done; step only those of ready_obs")
        return ids

    def _asked(self, ids: list[int]) -> Array | None:
        """The envs to wait for, when these were just sent."""
        return np.array(ids)

    def _timesteps(self, ids: Array, steps: Steps) -> dict[int, Timestep]:
        assert self._by_hand is not None
        self._by_hand = self._by_hand.copy()  # whoever was given the old one may still hold it
        self._by_hand[ids] = steps.obs
        ended = {episode.env_id: episode for episode in steps.episodes}
        for i in ended:
            self._ended[i] += 1
        flags = (steps.reward.tolist(), steps.terminated.tolist(), steps.truncated.tolist())
        rows = zip(ids.tolist(), steps.next_obs, *flags, strict=True)
        broken, absent = set(steps.failed), set(map(int, steps.absent))
        return {
            i: Timestep(obs, reward, final, cut, ended.get(i), k in broken, k in absent)
            for k, (i, obs, reward, final, cut) in enumerate(rows)
        }

    @property
    def done(self) -> bool:
        """By hand: whether every env has played its episodes."""
        return all(map(self._is_done, range(self.spec().count)))

    def _is_done(self, index: int) -> bool:
        n, quota = self.spec().agents, self._quota
        first = index - index % n
        return quota is not None and min(self._ended[first : first + n]) >= quota


def _refuse_unknown(ids: Iterable[Any], known: range) -> None:
    for i in ids:
        if i not in known:
            raise ValueError(f"there is no env {i!r}; they are 0 to {len(known) - 1}")
