"""Assembles the results in the shared rows into `Steps`. All of these envs have their results."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.env_tracker import EnvTracker
from flowrl.nodes.env_managers.failures import FailureTracker
from flowrl.nodes.env_managers.workers.shared_rows import ENDED, TERMINATED, TRUNCATED
from flowrl.nodes.envs.output_checks import FiniteCheck
from flowrl.nodes.envs.steps import Steps


class StepAssembler:
    """The results of steps from one reset of all envs to the next. Steps of all envs without an end are fastest."""

    def __init__(self, tracker: EnvTracker, failures: FailureTracker, check_finite: bool) -> None:
        """`check_finite` says that observations may be infinite or NaN. (Workers check rewards.)"""
        shared = tracker.shared
        self._tracker, self._failures, self._shared = tracker, failures, shared
        self._envs, self._statistics = tracker.envs, tracker.statistics
        self._obs_are_finite = FiniteCheck(*([shared.obs] if check_finite else []))
        self._final_obs_are_finite = FiniteCheck(*([shared.final_obs] if check_finite else []))
        # Returned by each step in which no episode ends.
        self._no_ends = np.zeros(len(self._envs.row), np.bool_)
        self._no_ends.flags.writeable = False

    def all_are_plain(self) -> bool:
        """Whether no env failed, ended an episode or was reset, as in most steps."""
        return (
            not (self._shared.has_flags() or any(self._envs.is_resetting)) and self.all_succeeded()
        )

    def all_succeeded(self) -> bool:
        """Whether no env failed. All rows are checked at once, because that is fastest."""
        shared = self._shared
        if not self._obs_are_finite():
            return False
        if not shared.has_flags():
            return True
        return max(shared.all_flags()) <= ENDED and self._final_obs_are_finite()

    def assemble_all(self) -> Steps:
        """The steps of all envs, each in its own row, none of which failed. This is the fastest path."""
        shared, no_ends = self._shared, self._no_ends
        self._envs.sent.clear()
        self._statistics.count_steps(None, shared.reward)
        obs, reward = shared.obs.copy(), shared.reward.astype(np.float32)
        if shared.has_flags():
            steps = self._with_all_ends(obs, reward)
        else:
            steps = Steps(obs, reward, no_ends, no_ends, obs, [])
        return steps if not shared.info else steps._replace(info=self._info_of(slice(None)))

    def _info_of(self, rows: Array | slice) -> dict[str, Array]:
        return {name: np.array(array[rows]) for name, array in self._shared.info.items()}

    def _with_all_ends(self, obs: Array, reward: Array) -> Steps:
        shared, tracker, episodes = self._shared, self._tracker, []
        ended, next_obs = shared.flags.nonzero()[0], obs.copy()
        next_obs[ended] = shared.final_obs[ended]
        terminated, truncated = self._no_ends.copy(), self._no_ends.copy()
        for index in ended.tolist():
            flags = int(shared.flags[index])
            terminated[index], truncated[index] = flags & TERMINATED, flags & TRUNCATED
            episodes.append(tracker.finished_episode(index))
            tracker.enter_next_episode(index)
        return Steps(obs, reward, terminated, truncated, next_obs, episodes)

    def assemble(self, at: Array) -> Steps:
        """The steps of these envs, in this order."""
        shared, envs = self._shared, self._envs
        rows = envs.row[at]
        reward, flags = shared.reward[rows], shared.flags[rows]
        if len(at) == len(envs.sent):
            envs.sent.clear()
        else:
            for index in at.tolist():
                del envs.sent[index]
        if not flags.any() and not self._tracker.restarted:
            obs, no_ends = shared.obs[rows], self._no_ends[: len(at)]
            self._statistics.count_steps(at, reward)
            steps = Steps(obs, reward.astype(np.float32), no_ends, no_ends, obs, [])
        else:
            steps = self._with_ends_and_failures(at, reward, flags)
        return steps if not shared.info else steps._replace(info=self._info_of(rows))

    def _with_ends_and_failures(self, at: Array, reward: Array, flags: Array) -> Steps:
        shared, tracker, envs = self._shared, self._tracker, self._envs
        rows = envs.row[at]
        obs, failed = shared.obs[envs.obs_row[at]], []
        counted: Any = [] if tracker.restarted else slice(None)
        for k, index in enumerate(at.tolist() if tracker.restarted else ()):
            if tracker.step_failed[index]:
                failed.append(k)
                reward[k], flags[k] = 0.0, 0
            elif index in tracker.held_ends:  # its steps are counted already
                flags[k] = tracker.held_ends[index][0]
            else:
                counted.append(k)
        self._statistics.count_steps(at[counted], reward[counted])
        ended = np.flatnonzero(flags)
        next_obs = obs.copy()
        next_obs[ended] = shared.final_obs[rows[ended]]
        episodes = [tracker.finished_episode(int(at[k])) for k in ended]
        for k in {*ended.tolist(), *failed}:
            tracker.enter_next_episode(int(at[k]))
        terminated, truncated = (flags & TERMINATED) != 0, (flags & TRUNCATED) != 0
        self._failures.report()
        return Steps(
            obs, reward.astype(np.float32), terminated, truncated, next_obs, episodes, failed
        )
