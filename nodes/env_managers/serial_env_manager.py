"""The env manager that steps its envs one after another, in the thread of whoever calls it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError
from flowrl.nodes.env_managers.action_log import ActionLog
from flowrl.nodes.env_managers.carry_over import CONTINUES
from flowrl.nodes.env_managers.env_error import EnvCloseError, describe_failure
from flowrl.nodes.env_managers.env_manager import EnvManager
from flowrl.nodes.env_managers.failures import (
    FailureConfig,
    FailureCounts,
    FailureTracker,
    nondeterminism_of_retries,
)
from flowrl.nodes.env_managers.local_envs import LocalEnvs
from flowrl.nodes.env_managers.replay_here import ENV_EXCEPTIONS, RestoreFailedError, replay_history
from flowrl.nodes.env_managers.saved_episodes import (
    EnvHistory,
    decode_histories,
    encode_histories,
)
from flowrl.nodes.env_managers.watchdog import Watchdog
from flowrl.nodes.envs.output_checks import (
    InvalidOutputError,
    check_observation,
    check_observations,
    check_rewards,
    check_rows,
)
from flowrl.nodes.envs.steps import Episode, Steps

Ends = dict[int, tuple[bool, bool]]  # by row of a step: terminated, truncated
Failed = dict[int, BaseException]  # by row of a step


class SerialEnvManager(EnvManager):
    """Some envs of one kind, stepped in turn. The fastest kind for envs that are cheap."""

    class Config(FailureConfig):
        pass

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Retries are."""
        return nondeterminism_of_retries(config)

    def setup(self) -> None:
        """Envs are made at the first reset."""
        super().setup()
        self._obs_dtype = np.dtype(self._obs_column.dtype)
        self._here: LocalEnvs | None = None
        self._sent: dict[int, Any] = {}
        self._no_ends = np.zeros(self.config.count, np.bool_)
        self._no_ends.flags.writeable = False  # given away at each step in which nothing ends
        self._failures = FailureTracker(self.config, self.ctx)
        limits = {"step": self.config.step_timeout_s, "reset": self.config.reset_timeout_s}
        self._watchdog = Watchdog(limits, self._late)

    def _late(self, index: int, doing: str, took_s: float) -> None:
        self._failures.counts.late += 1
        self._failures.tell()
        limit = getattr(self.config, f"{doing}_timeout_s")
        self.ctx.log(f"env {index}: {doing} took {took_s:.1f} s; {doing}_timeout_s is {limit:g}")

    @property
    def failures(self) -> FailureCounts:
        """What happened so far."""
        return self._failures.counts

    def reset(self) -> Array:
        """Begin a new episode in each env; gives the first observations (B, …)."""
        if self._here is None:
            self._here = self._new_envs()
        self._accounts.restart()
        self._log, self._sent = ActionLog(self.config.count), {}
        obs = self._new_rows(self.config.count)
        for index in self._ids:
            obs[index] = self._begin(index)
        self._seen, self._owned = obs, False
        return obs

    def _new_envs(self) -> LocalEnvs:
        def make(index: int) -> Any:
            return self._part.make(self._make_index(index))

        return LocalEnvs(self.config.count, make, self._watchdog)

    def _new_rows(self, count: int) -> Array:
        return np.empty((count, *self._obs_column.shape), self._obs_dtype)

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, or those of `ids`, each with its row of `actions` (B, …)."""
        at = self._ids if ids is None else ids
        acts = self._acts(actions, len(at)).copy()  # the log keeps them
        here = self._envs_here()
        if self._sent or ids is not None:
            self._refuse_to_step(at, self._sent)
        return self._advance(here, at, acts)

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, each with its row of `actions`; `recv` gives what came of it."""
        at = np.asarray(ids).tolist()
        acts = self._acts(actions, len(at))
        self._envs_here()
        self._refuse_to_step(at, self._sent)
        self._sent.update(zip(at, acts, strict=True))

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order; without `ids`, of all that were sent, as sent.

        At least `least` of them: here none waits for another, so all are always ready.
        """
        at = list(self._sent) if ids is None else np.asarray(ids).tolist()
        if missing := set(at) - self._sent.keys():
            raise ValueError(f"env {min(missing)} was not sent; send it before it is received")
        acts = np.array([self._sent.pop(index) for index in at], self._action_dtype)
        return np.array(at, np.int64), self._advance(self._envs_here(), at, acts)

    def _envs_here(self) -> LocalEnvs:
        if self._here is None:
            raise ValueError("the envs have not begun; call reset() first")
        return self._here

    # stepping

    def _advance(self, here: LocalEnvs, at: Sequence[int], acts: Array) -> Steps:
        everyone = None if at is self._ids else np.asarray(at)
        self._log.add(everyone, acts)
        ends: Ends = {}
        failed: Failed = {}
        step_one = here.step_one if at is self._ids else [here.step_one[index] for index in at]
        seen, given = _stepped(step_one, acts, ends, failed)
        for k in here.limits.reached(self._accounts, everyone):
            ends[k] = k in ends and ends[k][0], True
        if failed:
            return self._mixed(at, seen, given, ends, failed)
        try:
            next_obs = check_observations(seen, self._obs_column, self._obs_dtype)
            reward = check_rewards(given)
        except InvalidOutputError as bad:
            return self._mixed(at, seen, given, ends, {bad.k: bad})
        self._accounts.count_steps(everyone, reward)
        if ends:
            return self._begun(at, next_obs, reward, ends, {})
        self._see(everyone, next_obs)
        none = self._no_ends[: len(seen)]
        return Steps(next_obs, reward.astype(np.float32), none, none, next_obs, [])

    def _mixed(
        self, at: Sequence[int], seen: list[Any], given: list[Any], ends: Ends, failed: Failed
    ) -> Steps:
        """The steps, where some failed: those are void, and their envs begin anew."""
        next_obs, reward, good = check_rows(seen, given, failed, self._obs_column, self._obs_dtype)
        self._accounts.count_steps([at[k] for k in good], reward[good])
        return self._begun(at, next_obs, reward, ends, failed)

    def _begun(
        self, at: Sequence[int], next_obs: Array, reward: Array, ends: Ends, failed: Failed
    ) -> Steps:
        """The steps, with new episodes where one ended or came to nothing."""
        obs, episodes = next_obs.copy(), []
        final, cut = np.zeros(len(at), np.bool_), np.zeros(len(at), np.bool_)
        for k in sorted({*ends, *failed}) if failed else ends:
            index = at[k]
            if k in failed:
                self._failed(index, self._accounts.length(index) + 1, failed[k])
                obs[k] = next_obs[k] = self._begin(index)
            else:
                final[k], cut[k] = ends[k]
                episodes.append(self._end(index))
                obs[k] = self._begin(index)
        broken = sorted(failed) if failed else ()
        self._see(None if at is self._ids else np.asarray(at), obs)
        return Steps(obs, reward.astype(np.float32), final, cut, next_obs, episodes, broken)

    def _see(self, at: Array | None, obs: Array) -> None:
        """Keep what these envs (None: all) observe; what was given away is not written to."""
        if at is None:
            self._seen, self._owned = obs, False
            return
        if not self._owned:
            self._seen, self._owned = self._seen.copy(), True
        self._seen[at] = obs

    def _end(self, index: int) -> Episode:
        self._failures.ended(index)
        return self._accounts.end(index, self._envs_here().own_return(index))

    # beginning

    def _begin(self, index: int) -> Any:
        """The first observation of an env's next episode, however many attempts that takes."""
        here = self._envs_here()
        while True:
            steps, seed = self._accounts.length(index), self._accounts.begin(index)
            try:
                here.need(index)
                self._note(index, seed, steps)
                obs, _ = here.reset_one[index](seed=seed)
                return check_observation(obs, self._obs_column, self._obs_dtype)
            except UnsoundError:  # no failure of an env: it was never one
                raise
            except ENV_EXCEPTIONS as error:
                self._failed(index, None, error)

    def _note(self, index: int, seed: int, steps: int) -> None:
        """How the episode begins that is the env's next; its last one took so many steps."""
        here = self._envs_here()
        if (text := here.carries(index)) == CONTINUES:
            self._log.go_on(index, seed, steps)
        else:
            self._log.begin(index, seed)
            here.carried[index] = text

    def _failed(self, index: int, lost: int | None, error: BaseException) -> None:
        """A step or a reset failed; if there is another attempt, wait for its time."""
        if isinstance(error, RestoreFailedError):
            return  # which is told already
        again = self._failures.failed(index, lost)
        self._failures.tell()
        if not again:
            self._fail(index, lost or 0, error)
        doing = "reset" if lost is None else "step"
        self.ctx.log(f"env {index}: {describe_failure(doing, error)}; it is begun anew")
        time.sleep(self._failures.pause_s(index))
        if self._failures.renews(index):
            self._envs_here().give_up(index)

    def _fail(self, index: int, step: int, error: BaseException) -> NoReturn:
        taken, complete = self._log.of(index) if step else ([], True)
        seed, traced = self._accounts.seeds[index], "".join(traceback.format_exception(error))
        what = describe_failure("step" if step else "reset", error)
        raise self._error(index, seed, step, taken, what, traced, complete) from error

    # saving

    def _save(self) -> dict[str, Any] | None:
        if self._here is None:
            return None
        if self._sent:
            raise ValueError("steps are under way; receive them before the envs are saved")
        saved = encode_histories(self._log, self._here.carried, self._seen, self._action_column)
        return {**saved, "failures": self._failures.state_dict()}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Play the episodes again, up to where they were."""
        here = self._here = self._new_envs()
        self._log, self._sent = ActionLog(self.config.count), {}
        self._failures.load_state_dict(saved["failures"])
        self._seen, self._owned = np.array(saved["seen"]), True
        for index, played in enumerate(decode_histories(saved, self._accounts)):
            self._log.restore(index, played.episodes)
            here.carried[index] = played.carried
            if why := self._why_not_again(here, index, played):
                self._failures.unrestored(index, self._accounts.length(index), why)
                here.step_one[index] = _once_refused(here.step_one, index)
                self._log.lose(index)
        self._failures.tell()

    def _why_not_again(self, here: LocalEnvs, index: int, played: EnvHistory) -> str:
        return replay_history(
            played,
            partial(here.make, index),
            lambda seed: here.reset_one[index](seed=seed),
            lambda action: here.step_one[index](action),
            lambda seen: check_observation(seen, self._obs_column, self._obs_dtype),
        )

    def close(self) -> None:
        """Close the envs; a later reset makes new ones."""
        self._watchdog.close()
        here, self._here = self._here, None
        for index, error in sorted(here.close().items()) if here is not None else ():
            raise EnvCloseError(f"env {index}: {describe_failure('close', error)}") from error


def _stepped(
    step_one: Sequence[Callable[..., Any]], acts: Array, ends: Ends, failed: Failed
) -> tuple[list[Any], list[Any]]:
    """What each env gave; that of those that failed is nothing. (Every word here costs.)"""
    seen: list[Any] = []
    given: list[Any] = []
    see, give = seen.append, given.append
    left = zip(step_one, acts)  # noqa: B905 (lengths are checked)
    while True:
        try:
            for step, act in left:
                obs, reward, final, cut, _ = step(act)
                if final or cut:
                    ends[len(seen)] = bool(final), bool(cut)
                see(obs)
                give(reward)
            return seen, given
        except ENV_EXCEPTIONS as error:
            failed[len(seen)] = error
            see(None)
            give(0.0)


def _once_refused(step_one: list[Callable[..., Any]], index: int) -> Callable[..., Any]:
    """A step that is void, and the env's own behind it."""
    own = step_one[index]

    def refuse(action: Any) -> NoReturn:
        step_one[index] = own
        raise RestoreFailedError

    return refuse
