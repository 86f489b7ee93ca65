"""The env manager that steps its envs one after another, in the thread of its caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.facts import UnsoundError
from flowrl.core.node import Load
from flowrl.nodes.env_managers.action_log import ActionLog
from flowrl.nodes.env_managers.env_error import (
    ENV_EXCEPTIONS,
    EnvCloseError,
    describe_failure,
    env_traceback,
)
from flowrl.nodes.env_managers.env_history import (
    CONTINUES,
    EnvHistory,
    decode_histories,
    encode_histories,
)
from flowrl.nodes.env_managers.env_manager import EnvManager
from flowrl.nodes.env_managers.episode_start import EpisodeStart
from flowrl.nodes.env_managers.failures import (
    FailureConfig,
    FailureCounts,
    FailureTracker,
    nondeterminism_of_retries,
)
from flowrl.nodes.env_managers.history_replay import replay_local_env
from flowrl.nodes.env_managers.local_envs import LocalEnvs
from flowrl.nodes.env_managers.watchdog import Watchdog
from flowrl.nodes.envs.output_checks import (
    InvalidOutputError,
    check_ends,
    check_observation,
    check_observations,
    check_rewards,
    check_rows,
)
from flowrl.nodes.envs.steps import Episode, Steps

WORTH_A_PROCESS_S = 1e-4  # a step that takes longer is worth messages to another process

Ends = dict[int, tuple[bool, bool]]  # by row of a step: terminated, truncated
NO_END = (False, False)
Failures = dict[int, BaseException]  # by row of a step


class NotRestoredError(Exception):
    """The first step of a saved env whose replay did not lead to its state."""


class SerialEnvManager(EnvManager):
    """Envs in this thread. This is the fastest kind for cheap envs."""

    class Config(FailureConfig):
        pass

    @classmethod
    def remedy(cls, config: Any, load: Load) -> str:
        """Worker processes, unless the envs are so cheap that messages to them take longer."""
        if config.count == 1 or load.each_s / config.count < WORTH_A_PROCESS_S:
            return ""
        return "its envs step one after another in this process; try `sync_subprocess_env_manager`"

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Why two runs may differ: failed envs are retried."""
        return nondeterminism_of_retries(config)

    def setup(self) -> None:
        """Prepare everything but the envs, which are made at the first reset."""
        super().setup()
        self._obs_dtype = np.dtype(self._obs_column.dtype)
        self._local_envs: LocalEnvs | None = None
        self._sent: dict[int, Any] = {}  # actions of pending steps
        # Returned by each step in which no episode ends.
        self._no_ends = np.zeros(self.config.count, np.bool_)
        self._no_ends.flags.writeable = False
        self._failures = FailureTracker(self.config, self.ctx)
        limits_s = {"step": self.config.step_timeout_s, "reset": self.config.reset_timeout_s}
        self._watchdog = Watchdog(limits_s, self._report_late)

    def _report_late(self, index: int, call: str, took_s: float) -> None:
        self._failures.counts.late += 1
        self._failures.report()
        limit_s = getattr(self.config, f"{call}_timeout_s")
        self.ctx.log(f"env {index}: {call} took {took_s:.1f} s; {call}_timeout_s is {limit_s:g}")

    @property
    def failures(self) -> FailureCounts:
        """The failures so far."""
        return self._failures.counts

    @property
    def local_envs(self) -> LocalEnvs:
        """The envs; an error before the first reset."""
        if self._local_envs is None:
            raise ValueError("env manager: no episode has begun; call reset() first")
        return self._local_envs

    def reset(self) -> Array:
        """Begin a new episode in each env; return the first observations (B, …)."""
        if self._local_envs is None:
            self._local_envs = self._new_envs()
        self.statistics.restart()
        self._log, self._sent = ActionLog(self.config.count), {}
        obs = np.empty((self.config.count, *self._obs_column.shape), self._obs_dtype)
        for index in self._ids:
            obs[index] = self._begin_episode(index)
        self.last_obs, self._owns_last_obs = obs, False
        return obs

    def _new_envs(self) -> LocalEnvs:
        def make(index: int) -> Any:
            return self._part.make(self._make_index(index))

        return LocalEnvs(self.config.count, make, self._watchdog, self._info_columns)

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, or those of `ids`, each with its row of `actions` (B, …)."""
        at = (
            self._ids if ids is None else np.asarray(ids).tolist()
        )  # plain numbers, for crash files
        acts = self._convert_actions(actions, len(at)).copy()  # the log keeps them
        envs = self.local_envs
        if self._sent or ids is not None:
            self._require_steppable(at, self._sent)
        steps = self._step_envs(envs, at, acts)
        return self._with_info(steps, at) if self._info_columns else steps

    def send(self, ids: Array, actions: Array) -> None:
        """Keep the actions of these envs until `recv`, which steps them."""
        at = np.asarray(ids).tolist()
        acts = self._convert_actions(actions, len(at))
        _ = self.local_envs  # raises before the first reset
        self._require_steppable(at, self._sent)
        self._sent.update(zip(at, acts, strict=True))

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order. Without `ids`: of all that were sent, in the order of sending."""
        at = list(self._sent) if ids is None else np.asarray(ids).tolist()
        if missing := set(at) - self._sent.keys():
            raise ValueError(f"env {min(missing)}: it was not sent; send it before receiving it")
        acts = np.array([self._sent.pop(index) for index in at], self._action_dtype)
        steps = self._step_envs(self.local_envs, at, acts)
        return np.array(at, np.int64), self._with_info(steps, at) if self._info_columns else steps

    def _with_info(self, steps: Steps, ids: Sequence[int]) -> Steps:
        info = {name: array[list(ids)] for name, array in self.local_envs.info.items()}
        return steps._replace(info=info)

    # stepping

    def _step_envs(self, envs: LocalEnvs, ids: Sequence[int], acts: Array) -> Steps:
        at = None if ids is self._ids else np.asarray(ids)
        self._log.add(at, acts)
        ends: Ends = {}
        failures: Failures = {}
        calls = envs.step_calls if at is None else [envs.step_calls[index] for index in ids]
        obs_list, reward_list = _call_steps(calls, acts, ends, failures)
        for k in envs.time_limits.rows_at_limit(self.statistics, at):
            ends[k] = k in ends and ends[k][0], True
        if failures:
            return self._steps_with_failures(ids, obs_list, reward_list, ends, failures)
        try:
            next_obs = check_observations(obs_list, self._obs_column, self._obs_dtype)
            reward = check_rewards(reward_list)
        except InvalidOutputError as invalid:
            failures = {invalid.k: invalid}
            return self._steps_with_failures(ids, obs_list, reward_list, ends, failures)
        self.statistics.count_steps(at, reward)
        if ends:
            return self._steps_with_new_episodes(ids, next_obs, reward, ends, {})
        self._keep_last_obs(at, next_obs)
        no_ends = self._no_ends[: len(obs_list)]
        return Steps(next_obs, reward.astype(np.float32), no_ends, no_ends, next_obs, [])

    def _steps_with_failures(
        self,
        ids: Sequence[int],
        obs_list: list[Any],
        reward_list: list[Any],
        ends: Ends,
        failures: Failures,
    ) -> Steps:
        """The steps, some of which failed. These rows are invalid, and their envs are restarted."""
        next_obs, reward, valid = check_rows(
            obs_list, reward_list, failures, self._obs_column, self._obs_dtype
        )
        self.statistics.count_steps([ids[k] for k in valid], reward[valid])
        return self._steps_with_new_episodes(ids, next_obs, reward, ends, failures)

    def _steps_with_new_episodes(
        self, ids: Sequence[int], next_obs: Array, reward: Array, ends: Ends, failures: Failures
    ) -> Steps:
        """The steps, with a new episode for each env whose episode ended or failed."""
        obs, episodes = next_obs.copy(), []
        terminated, truncated = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.bool_)
        for k in sorted({*ends, *failures}) if failures else ends:
            index = ids[k]
            if k in failures:
                self._handle_failure(index, self.statistics.length(index) + 1, failures[k])
                obs[k] = next_obs[k] = self._begin_episode(index)
            else:
                terminated[k], truncated[k] = ends[k]
                episodes.append(self._finish_episode(index))
                obs[k] = self._begin_episode(index)
        failed = sorted(failures) if failures else ()
        self._keep_last_obs(None if ids is self._ids else np.asarray(ids), obs)
        reward = reward.astype(np.float32)
        return Steps(obs, reward, terminated, truncated, next_obs, episodes, failed)

    def _keep_last_obs(self, at: Array | None, obs: Array) -> None:
        """Keep what these envs (None: all) observe, without writing to arrays that callers may hold."""
        if at is None:
            self.last_obs, self._owns_last_obs = obs, False
            return
        if not self._owns_last_obs:
            self.last_obs, self._owns_last_obs = self.last_obs.copy(), True
        self.last_obs[at] = obs

    # episodes and failures

    def _finish_episode(self, index: int) -> Episode:
        self._failures.reset_attempts(index)
        return self.statistics.finished_episode(index, self.local_envs.own_return(index))

    def _begin_episode(self, index: int) -> Any:
        """Begin an env's next episode, with as many attempts as it takes; return the first observation."""
        envs = self.local_envs
        while True:
            last_length = self.statistics.length(index)
            start = EpisodeStart(self.statistics.start_episode(index), self._reset_options)
            try:
                envs.ensure_made(index)
                self._log_episode(index, start, last_length)
                obs, _ = envs.reset_calls[index](**start.arguments())
                return check_observation(obs, self._obs_column, self._obs_dtype)
            except UnsoundError:  # not a failure of the env: it cannot work at all
                raise
            except ENV_EXCEPTIONS as error:
                self._handle_failure(index, None, error)

    def _log_episode(self, index: int, start: EpisodeStart, last_length: int) -> None:
        """Log how the env's next episode begins."""
        envs = self.local_envs
        carried = envs.carry_over(index)
        if carried == CONTINUES:
            self._log.begin_continuing(index, start, last_length)
        else:
            self._log.begin_afresh(index, start)
            envs.carried[index] = carried

    def _handle_failure(self, index: int, dropped_steps: int | None, error: BaseException) -> None:
        """Wait before the next attempt after a failed step or reset (None), or raise the env's error."""
        if isinstance(error, NotRestoredError):
            return  # it was counted when the env was not restored
        may_retry = self._failures.count_failure(index, dropped_steps)
        self._failures.report()
        if not may_retry:
            self._raise_env_error(index, dropped_steps or 0, error)
        call = "reset" if dropped_steps is None else "step"
        self.ctx.log(f"env {index}: {describe_failure(call, error)}; it is restarted")
        time.sleep(self._failures.retry_delay_s(index))
        if self._failures.recreates_env(index):
            self.local_envs.discard(index)

    def _raise_env_error(self, index: int, step: int, error: BaseException) -> NoReturn:
        """Raise the error of an env that has no attempt left; step 0 is the reset."""
        actions, complete = self._log.current_episode(index) if step else ([], True)
        start = EpisodeStart(self.statistics.seeds[index], self._reset_options)
        if step:
            start = self._log.current_start(index)
        call = "step" if step else "reset"
        traced, what = env_traceback(call, error), describe_failure(call, error)
        raise self._make_error(index, start, step, actions, what, traced, complete) from error

    # saving

    def _save_envs(self) -> dict[str, Any] | None:
        if self._local_envs is None:
            return None
        if self._sent:
            raise ValueError("env manager: steps are pending; receive them before saving the envs")
        saved = encode_histories(
            self._log, self._local_envs.carried, self.last_obs, self._action_column
        )
        return {**saved, "failures": self._failures.state_dict()}

    def _restore_envs(self, saved: Mapping[str, Any]) -> None:
        """Replay the envs' histories."""
        envs = self._local_envs = self._new_envs()
        self._log, self._sent = ActionLog(self.config.count), {}
        self._failures.load_state_dict(saved["failures"])
        self.last_obs, self._owns_last_obs = np.array(saved["seen"]), True
        for index, history in enumerate(decode_histories(saved, self.statistics)):
            self._log.restore(index, history.episodes)
            envs.carried[index] = history.carried
            if reason := self._replay(envs, index, history):
                self._failures.count_unrestored(index, self.statistics.length(index), reason)
                envs.step_calls[index] = _fail_first_call(envs.step_calls, index)
                self._log.mark_incomplete(index)
        self._failures.report()

    def _replay(self, envs: LocalEnvs, index: int, history: EnvHistory) -> str:
        """Replay an env; return why it is not in its saved state."""
        return replay_local_env(
            history,
            partial(envs.make, index),
            lambda **arguments: envs.reset_calls[index](**arguments),
            lambda action: envs.step_calls[index](action),
            lambda obs: check_observation(obs, self._obs_column, self._obs_dtype),
        )

    def close(self) -> None:
        """Close the envs. A later reset makes new ones."""
        self._watchdog.close()
        envs, self._local_envs = self._local_envs, None
        for index, error in sorted(envs.close().items()) if envs is not None else ():
            raise EnvCloseError(f"env {index}: {describe_failure('close', error)}") from error


def _call_steps(
    calls: Sequence[Callable[..., Any]], acts: Array, ends: Ends, failures: Failures
) -> tuple[list[Any], list[Any]]:
    """Step each env; return observations and rewards (None and 0 of envs that failed).

    This loop is as short as it can be, because its overhead counts for cheap envs.
    """
    obs_list: list[Any] = []
    reward_list: list[Any] = []
    append_obs, append_reward = obs_list.append, reward_list.append
    remaining = zip(calls, acts)  # noqa: B905 (lengths are checked)
    while True:
        try:
            for step, act in remaining:
                obs, reward, terminated, truncated, _ = step(act)
                if terminated is not False or truncated is not False:
                    end = check_ends(terminated, truncated)
                    if end != NO_END:
                        ends[len(obs_list)] = end
                append_obs(obs)
                append_reward(reward)
            return obs_list, reward_list
        except ENV_EXCEPTIONS as error:
            failures[len(obs_list)] = error
            append_obs(None)
            append_reward(0.0)


def _fail_first_call(step_calls: list[Callable[..., Any]], index: int) -> Callable[..., Any]:
    """A step that fails once, and then is replaced by the env's own."""
    own_step = step_calls[index]

    def fail(action: Any) -> NoReturn:
        step_calls[index] = own_step
        raise NotRestoredError

    return fail
