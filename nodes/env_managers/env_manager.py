"""The interface of env managers: what every kind offers to collectors, evaluators, and use without the engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import model_validator

from flowrl.core.batch import Array
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param, part
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import Service
from flowrl.core.reseeding import Reseeding
from flowrl.nodes.env_managers.crash_files import CrashFile
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.episode_start import EpisodeStart, encode_options
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.envs.actions import convert_actions
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.agent_rows import as_agent_rows
from flowrl.nodes.envs.callables import env_makers
from flowrl.nodes.envs.info import info_notes
from flowrl.nodes.envs.spec import EnvSpec, env_columns, env_part, evaluation_part
from flowrl.nodes.envs.steps import Episode, Steps, Timestep, with_last_info
from flowrl.nodes.observations import NestedColumns


class EnvManager(Node):
    """Several envs of one kind. An env whose episode ends begins the next one in the same step.

    A subclass defines `reset`, `send`, `recv` and `close`; everything else follows from these. If its envs can be
    saved, it also defines `_save_envs` and `_restore_envs`. The rows of these methods are envs. `as_agent_rows` offers
    the same methods with a row for each agent, for envs whose agents share a policy.
    """

    may_end_run = False
    serve = Service(
        "env_manager",
        methods=("spec", "seed", "set_reset_options", "reset", "advance", "send", "recv"),
        values=(EnvSpec, NestedColumns, Steps, Episode),
    )

    class Config(BaseConfig):
        env: Any = part("env", "the env", shared="env", default="gymnasium")
        count: int = param(8, "number of envs", ge=1)
        dynamic_seeds: bool = param(
            True, "whether a reset begins new episodes; false: the same sequence of episodes again"
        )

        @model_validator(mode="before")
        @classmethod
        def count_callables(cls, given: Any) -> Any:
            """Without the engine, `env` may be a list of functions, one for each env."""
            is_list = isinstance(given, dict) and isinstance(given.get("env"), list | tuple)
            if not is_list or not env_makers(given["env"]):
                return given
            functions = len(given["env"])
            if given.setdefault("count", functions) != functions:
                what = f"{functions} functions for {given['count']} envs"
                raise UnsoundError(what, "give one for each", "count")
            return given

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The facts: linked nodes get an `EnvSpec`."""
        config, why = (
            config_for_clients(config, surroundings.client_roles),
            cls.nondeterministic(config),
        )
        spec = env_spec(config.env, config.count)
        wants_notes = surroundings.wants_notes and not (spec.records or spec.groups)
        notes = info_notes(config.env, spec.info) if wants_notes else ()
        return Facts(service=spec, nondeterministic=why, notes=notes)

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Why two runs may differ; empty if they do not."""
        return ""

    def setup(self) -> None:
        """Prepare everything but the envs, which are made at the first reset."""
        self.config = config_for_clients(self.config, self.ctx.client_roles)
        self._part = env_part(self.config.env)
        self._obs_column, self._action_column = env_columns(self._part)
        self._action_dtype = np.dtype(self._action_column.dtype)
        self._ids: Sequence[int] = range(self.config.count)
        self._known_ids = frozenset(self._ids)
        self._spec = env_spec(self._part, self.config.count)
        # For agents that act by themselves, the listed entries of `info` are part of the record of all agents.
        self._info_columns = {} if self._spec.records else self._spec.info
        self._episode_quota: int | None = None
        self._manual_obs: Array | None = None  # to act on next; None unless `launch` was called
        self._reset_options = ""  # of the next episodes, encoded
        self.seed(self.ctx.seed_for("episodes"), self.config.dynamic_seeds)

    def spec(self) -> EnvSpec:
        """The columns of observations and actions, and the number of rows: envs, or agents that act by themselves."""
        return self._spec

    @property
    def part(self) -> Any:
        """The env part that makes the envs."""
        return self._part

    def seed(self, seed: int, dynamic_seeds: bool = True, first_env: int = 0) -> None:
        """From the next reset on, the seed of env i's episode k follows from `seed`, `first_env` + i and k."""
        self.statistics = EpisodeStatistics(self.config.count, seed, dynamic_seeds, first_env)

    def set_reset_options(self, options: Mapping[str, float]) -> None:
        """Give each env these numbers in `reset(options=)` from its next episode on; without any, no options."""
        encoded = encode_options(options)
        if encoded != self._reset_options:
            self._reset_options = encoded
            self._apply_reset_options()

    def _apply_reset_options(self) -> None:
        """Let the next episodes begin with the new options, where they were prepared with others."""

    def reset(self) -> Array:
        """Begin a new episode in each env; return the first observations (B, …)."""
        raise NotImplementedError

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, each with its row of `actions`. `recv` returns the results."""
        raise NotImplementedError

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order. Without `ids`: of at least `least` envs, whichever are ready."""
        raise NotImplementedError

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, or those of `ids`, each with its row of `actions` (B, …)."""
        at = np.arange(self.config.count) if ids is None else np.asarray(ids)
        self.send(at, actions)
        return self.recv(at)[1]

    def _convert_actions(self, actions: Any, count: int) -> Array:
        """Convert actions to the dtype of their column. Refuse values that this would change."""
        return convert_actions(actions, count, self._action_column)

    def _require_steppable(self, ids: Sequence[int], sent: Mapping[int, Any]) -> None:
        """Refuse envs that do not exist, that are given twice, or whose step is pending."""
        chosen = set(ids)
        if len(chosen) == len(ids) and chosen <= self._known_ids and chosen.isdisjoint(sent):
            return
        _require_known(ids, self.config.count)
        pending = min(chosen & sent.keys(), default=None)
        if pending is None:
            raise ValueError(f"env manager: the ids {list(ids)} repeat an env; give each env once")
        raise ValueError(f"env {pending}: its step is pending; receive it before sending again")

    def _make_error(
        self,
        index: int,
        start: EpisodeStart,
        step: int,
        actions: Sequence[Any],
        what: str,
        traceback: str = "",
        complete: bool = True,
        timeout_s: float | None = None,
    ) -> EnvError:
        """Make the error of an env that has no attempt left, with its crash file."""
        crash = CrashFile.from_episode(
            self._part,
            actions,
            make_index=self._make_index(index),
            index=index,
            seed=start.seed,
            options=start.arguments().get("options", {}),
            step=step,
            what=what,
            traceback=traceback,
            complete=complete,
            timeout_s=timeout_s,
        )
        name = getattr(self._part.config, "id", type(self._part).__name__)
        files = {f"crash-{self.ctx.key}-{index}.json": crash.text()}
        return EnvError(name, index, start.seed, step, actions, what, files, bool(traceback))

    def _make_index(self, index: int) -> int:
        """An env's index among the envs of all replicas; parts may make different envs by it."""
        return int(self.ctx.replica * self.config.count + index)

    # saving

    def state_dict(self) -> dict[str, Any]:
        """The state of every env, as data that every kind of manager can load. No step may be pending."""
        return {
            "accounts": self.statistics.state_dict(),
            "options": self._reset_options,
            "envs": self._save_envs(),
            "launched": None if self._manual_obs is None else list(self._episodes_played),
            "quota": self._episode_quota,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        An env that cannot be brought to its saved state is restarted in its next step. The step is invalid
        (`Steps.failed`), which is counted and recorded.
        """
        self.close()
        self.statistics.load_state_dict(state["accounts"])
        self._reset_options = state["options"]
        self._episode_quota, self._manual_obs = state["quota"], None
        if state["envs"] is not None:
            self._restore_envs(state["envs"])
            if state["launched"] is not None:
                self._episodes_played = list(state["launched"])
                obs, rows = np.array(state["envs"]["seen"]), as_agent_rows(self)
                self._manual_obs = obs if rows is self else rows.obs_to_act_on(obs)

    def reseeded(self, state: Mapping[str, Any], reseeding: Reseeding) -> dict[str, Any]:
        """Other seeds for all later episodes. Envs that are replayed end their current one with its own seed."""
        accounts = {**state["accounts"], "seed": reseeding.seed(state["accounts"]["seed"])}
        return {**super().reseeded(state, reseeding), "accounts": accounts}

    def _save_envs(self) -> dict[str, Any] | None:
        """The envs as data; None before the first reset."""
        raise NotImplementedError(f"{type(self).__name__} does not define _save_envs")

    def _restore_envs(self, saved: Mapping[str, Any]) -> None:
        """Bring new envs to their saved state. The statistics are restored already."""
        raise NotImplementedError(f"{type(self).__name__} does not define _restore_envs")

    # use without the engine

    def launch(self, episodes: int | None = None) -> None:
        """Begin an episode in each env. An env is done when it has played this many episodes (None: never).

        For agents that act by themselves, ids are those of agents, and an env is done when all its agents are.
        """
        if episodes is not None and episodes < 1:
            raise ValueError(f"launch: episodes is {episodes}; give at least 1, or None for no end")
        self._episode_quota = episodes
        self._episodes_played = [0] * self.spec().count
        self._manual_obs = as_agent_rows(self).reset().copy()

    @property
    def ready_obs(self) -> dict[int, Array]:
        """The observation of each env, or agent, that waits for an action; by id."""
        obs = self._launched_obs()
        return {i: obs[i] for i in self._waiting_ids()}

    def _launched_obs(self) -> Array:
        if self._manual_obs is None:
            raise ValueError("env manager: the envs were not launched; call launch() first")
        return self._manual_obs

    def _waiting_ids(self) -> list[int]:
        return [i for i in range(self.spec().count) if not self._is_done(i)]

    def step(self, actions: Mapping[int, Any]) -> dict[int, Timestep]:
        """Step the envs of these ids. `ready_obs` then holds the observations to act on."""
        ids, rows = self._ids_to_step(actions), as_agent_rows(self)
        rows.send(np.array(ids), np.array([actions[i] for i in ids]))
        return self._record_steps(*rows.recv(self._ids_to_receive(ids)))

    def _ids_to_step(self, actions: Mapping[int, Any]) -> list[int]:
        """The ids of these actions, in order. Refuse envs that cannot be stepped."""
        self._launched_obs()
        ids = list(actions)
        if not ids:
            raise ValueError("step: no action is given; give one for an env of ready_obs, or more")
        _require_known(ids, self.spec().count)
        ids.sort()
        done = [i for i in ids if self._is_done(i)]
        if done:
            raise ValueError(f"env {done[0]}: it is done; step only the envs of ready_obs")
        return ids

    def _ids_to_receive(self, ids: list[int]) -> Array | None:
        """The envs to wait for after these were sent; None: whichever are ready."""
        return np.array(ids)

    def _record_steps(self, ids: Array, steps: Steps) -> dict[int, Timestep]:
        """Count the episodes that ended, keep the observations to act on, and return the steps by id."""
        self._manual_obs = self._launched_obs().copy()  # a caller may hold the old array
        self._manual_obs[ids] = steps.obs
        ended = {episode.env_id: episode for episode in with_last_info(steps, ids)}
        for i in ended:
            self._episodes_played[i] += 1
        flags = (steps.reward.tolist(), steps.terminated.tolist(), steps.truncated.tolist())
        rows = zip(ids.tolist(), steps.next_obs, *flags, strict=True)
        failed, absent = set(steps.failed), set(map(int, steps.absent))
        return {
            i: Timestep(
                obs,
                reward,
                terminated,
                truncated,
                ended.get(i),
                k in failed,
                k in absent,
                {name: values[k] for name, values in steps.info.items()},
            )
            for k, (i, obs, reward, terminated, truncated) in enumerate(rows)
        }

    @property
    def done(self) -> bool:
        """Whether every env has played its episodes."""
        return all(map(self._is_done, range(self.spec().count)))

    def _is_done(self, index: int) -> bool:
        agents, quota = self.spec().agents, self._episode_quota
        first = index - index % agents
        return quota is not None and min(self._episodes_played[first : first + agents]) >= quota


def config_for_clients(config: Any, roles: Collection[str]) -> Any:
    """The config of a manager whose clients have these roles: an evaluator's envs have the settings for evaluation."""
    if "evaluator" not in roles:
        return config
    return config.model_copy(update={"env": evaluation_part(config.env)})


def _require_known(ids: Iterable[Any], count: int) -> None:
    for i in ids:
        if i not in range(count):
            raise ValueError(f"env {i!r} does not exist; ids are 0 to {count - 1}")
