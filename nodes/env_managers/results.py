"""What workers wrote for the manager, as it gives it on: columns over envs, all of which have settled."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.failures import FailureTracker
from flowrl.nodes.env_managers.worker_results import EnvTracker
from flowrl.nodes.env_managers.workers.shared_rows import ENDED, TERMINATED, TRUNCATED
from flowrl.nodes.envs.output_checks import FiniteCheck
from flowrl.nodes.envs.steps import Steps


class StepAssembler:
    """The results of the steps between one reset of all and the next."""

    def __init__(self, settling: EnvTracker, failures: FailureTracker, checked: bool) -> None:
        """`checked`: observations may be something else than finite. (Rewards are finite: workers
        see to that.)"""
        self._settling, self._failures, self._board = settling, failures, settling.board
        self._accounts, self._sent = settling.accounts, settling.sent
        board = settling.board
        self._finite = FiniteCheck(*([board.obs] if checked else []))
        self._finite_ends = FiniteCheck(*([board.last] if checked else []))
        self._no_ends = np.zeros(len(settling.row), np.bool_)
        self._no_ends.flags.writeable = False  # given away at each step in which nothing ends

    def all_plain(self) -> bool:
        """Whether nothing failed, ended, or began: so it is nearly always."""
        return not (self._board.any_flags() or any(self._settling.begins)) and self.all_sound()

    def all_sound(self) -> bool:
        """Whether nothing failed; looked at all at once, because that costs least."""
        board = self._board
        if not self._finite():
            return False
        if not board.any_flags():
            return True
        return max(board.all_flags()) <= ENDED and self._finite_ends()

    def of_all(self) -> Steps:
        """The steps of all envs, each in its own row, where nothing failed: the shortest way."""
        board, none = self._board, self._no_ends
        self._sent.clear()
        self._accounts.count_steps(None, board.reward)
        obs, reward = board.obs.copy(), board.reward.astype(np.float32)
        if board.any_flags():
            return self._all_ends(obs, reward)
        return Steps(obs, reward, none, none, obs, [])

    def _all_ends(self, obs: Array, reward: Array) -> Steps:
        """The same, where some episodes have ended."""
        board, settling, episodes = self._board, self._settling, []
        ended, next_obs = board.flags.nonzero()[0], obs.copy()
        next_obs[ended] = board.last[ended]
        final, cut = self._no_ends.copy(), self._no_ends.copy()
        for index in ended.tolist():
            flags = int(board.flags[index])
            final[index], cut[index] = flags & TERMINATED, flags & TRUNCATED
            episodes.append(settling.end(index))
            settling.begun(index)
        return Steps(obs, reward, final, cut, next_obs, episodes)

    def of(self, at: Array) -> Steps:
        """The steps of these envs, in this order."""
        board, rows = self._board, self._settling.row[at]
        reward, flags = board.reward[rows], board.flags[rows]
        if len(at) == len(self._sent):
            self._sent.clear()
        else:
            for index in at.tolist():
                del self._sent[index]
        if not flags.any() and not self._settling.odd:
            obs, none = board.obs[rows], self._no_ends[: len(at)]
            self._accounts.count_steps(at, reward)
            return Steps(obs, reward.astype(np.float32), none, none, obs, [])
        return self._ends(at, reward, flags)

    def _ends(self, at: Array, reward: Array, flags: Array) -> Steps:
        """The same, where some have ended, or failed."""
        board, rows, accounts = self._board, self._settling.row[at], self._accounts
        obs, broken = board.obs[self._settling.source[at]], []
        counted: Any = [] if self._settling.odd else slice(None)
        for k, index in enumerate(at.tolist() if self._settling.odd else ()):
            if self._settling.broken[index]:
                broken.append(k)
                reward[k], flags[k] = 0.0, 0
            elif index in self._settling.kept:
                flags[k] = self._settling.kept[index][0]
            else:
                counted.append(k)
        accounts.count_steps(at[counted], reward[counted])
        ended = np.flatnonzero(flags)
        next_obs = obs.copy()
        next_obs[ended] = board.last[rows[ended]]
        episodes = [self._settling.end(int(at[k])) for k in ended]
        for k in {*ended.tolist(), *broken}:
            self._settling.begun(int(at[k]))
        final, cut = (flags & TERMINATED) != 0, (flags & TRUNCATED) != 0
        self._failures.tell()
        return Steps(obs, reward.astype(np.float32), final, cut, next_obs, episodes, broken)
