"""Env managers whose envs live with workers: processes or threads, several envs to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings
from flowrl.nodes.env_managers.env_error import EnvCloseError
from flowrl.nodes.env_managers.env_manager import EnvManager
from flowrl.nodes.env_managers.failures import (
    FailureConfig,
    FailureCounts,
    FailureTracker,
    nondeterminism_of_retries,
)
from flowrl.nodes.env_managers.replay_on_board import SavedEnvsRestorer
from flowrl.nodes.env_managers.results import StepAssembler
from flowrl.nodes.env_managers.saved_episodes import decode_histories, encode_histories
from flowrl.nodes.env_managers.worker_results import EnvTracker
from flowrl.nodes.env_managers.workers.adaptive_wait import MAX_SPIN_S
from flowrl.nodes.env_managers.workers.shared_rows import (
    CLOSE_FAILED,
    RESET,
    STEP,
    SharedRows,
)
from flowrl.nodes.env_managers.workers.worker import STOP_TIMEOUT_S, ManagerWaker, Worker
from flowrl.nodes.env_managers.workers.worker_pool import WorkerPool, usable_cores
from flowrl.nodes.envs.steps import Steps
from flowrl.nodes.envs.wrappers.wrapper import refuse_carry_over, refuse_wrappers_across_episodes


class WorkerEnvManager(EnvManager):
    """What kinds with workers share: orders, results, and columns of these."""

    class Config(FailureConfig):
        envs_per_worker: int | None = param(
            None, "envs that share a worker; default: as many as makes one worker a core", ge=1
        )
        pre_reset: bool = param(
            False, "begin each env's next episode ahead of time, in a spare env with another worker"
        )
        connect_timeout_s: float = param(
            60.0, "a worker that has not begun by then has failed", gt=0
        )
        max_worker_bytes: int | None = param(
            None, "a worker process that holds more memory is replaced between two steps", gt=0
        )

    look_s = MAX_SPIN_S  # for results, before sleeping

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Some envs cannot be reset ahead."""
        if config.pre_reset:
            refuse_wrappers_across_episodes(config.env)
        return super().describe(config, surroundings)

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Retries are."""
        return nondeterminism_of_retries(config)

    def setup(self) -> None:
        """Workers are started at the first reset."""
        super().setup()
        if self.config.pre_reset:
            refuse_wrappers_across_episodes(self.config.env)
        count = self.config.count
        self._crew: WorkerPool | None = None
        self._restoring: SavedEnvsRestorer | None = None  # while envs are played again
        self._failures = FailureTracker(self.config, self.ctx)
        self._everyone = np.arange(count)
        self._everyone.flags.writeable = False  # given away where all are ready
        self._all_sent = dict.fromkeys(range(count))
        self._checked = np.dtype(self._obs_column.dtype).kind == "f"

    @property
    def failures(self) -> FailureCounts:
        """What happened so far."""
        return self._failures.counts

    # workers

    def _open(self) -> WorkerPool:
        c = self.config
        per = c.envs_per_worker or self._default_envs_per_worker()
        groups = [range(first, min(first + per, c.count)) for first in range(0, c.count, per)]
        if c.pre_reset:
            groups += [range(rows.start + c.count, rows.stop + c.count) for rows in groups]
        self._groups = groups
        self._board = self._new_board(c.count * (1 + c.pre_reset), len(groups))
        self._row = np.arange(c.count)  # where each env plays
        return WorkerPool(self._board, groups, self._hire, self._lost, c, self.look_s)

    def _default_envs_per_worker(self) -> int:
        return -(-self.config.count // usable_cores())

    def _new_board(self, rows: int, workers: int) -> SharedRows:
        raise NotImplementedError

    def _hire(self, worker: int, answers: ManagerWaker) -> Worker:
        raise NotImplementedError

    def close(self) -> None:
        """Send the workers home; a later reset starts others."""
        if self._crew is not None:
            crew, self._crew = self._crew, None
            stayed = crew.close()
            self._tell_unclosed([row for number in stayed for row in crew.rows[number]])

    def _tell_unclosed(self, hung: list[int]) -> None:
        board = self._board
        told = dict.fromkeys(
            hung, f"close took longer than {STOP_TIMEOUT_S:g} s; its worker was given up"
        )
        for row in np.flatnonzero(board.flags & CLOSE_FAILED).tolist():
            told[row] = board.read(row).partition("\n")[0]
        if told:
            row, what = min(told.items())
            raise EnvCloseError(f"env {row % self.config.count}: {what}")

    # episodes

    def reset(self) -> Array:
        """Begin a new episode in each env; gives the first observations (B, …)."""
        try:
            return self._reset()
        except BaseException:
            with suppress(EnvCloseError):  # what comes first is told
                self.close()
            raise

    def _reset(self) -> Array:
        if self._crew is None:
            self._crew = self._open()
        else:
            self._crew.wait()  # what was sent, and is of no use now
        self._accounts.restart()
        settling, board = self._settle_anew(self._crew), self._board
        board.flags[:] = 0
        for index in self._ids:
            settling.begin(index, int(self._row[index]), RESET)
        self._wait(self._everyone)
        settling.clear()
        self._look_ahead()
        return board.obs[self._row]

    def _settle_anew(self, crew: WorkerPool) -> EnvTracker:
        settling = self._settling = EnvTracker(
            crew,
            self.config,
            self._accounts,
            self._failures,
            self._row,
            self._checked,
            self._error,
        )
        self._log, self._sent = settling.log, settling.sent
        self._results = StepAssembler(settling, self._failures, self._checked)
        return settling

    def _look_ahead(self) -> None:
        """All are in their episodes: have the next prepared."""
        if self.config.pre_reset:
            refuse_carry_over(self._settling.carried)
            for index in self._ids:
                self._settling.order_spare(index, self._settling.other(int(self._row[index])))
        else:
            self._settling.next_seeds(self._ids)
        self._failures.tell()

    @property
    def _team(self) -> WorkerPool:
        if self._crew is None:
            raise ValueError("the envs have not begun; call reset() first")
        return self._crew

    # stepping

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, or those of `ids`, each with its row of `actions` (B, …)."""
        at = self._everyone if ids is None else np.asarray(ids)
        self.send(at, actions)
        return self.recv(at)[1]

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, each with its row of `actions`; `recv` gives what came of it."""
        crew = self._team
        if ids is self._everyone and not (
            self._sent or self._settling.unfit or self.config.pre_reset
        ):
            self._send_all(crew, actions)
            return
        at = np.asarray(ids)
        acts = self._acts(actions, len(at)).copy()
        self._refuse_to_step(at.tolist(), self._sent)
        sent = dict.fromkeys(at.tolist())
        rows = self._row[at]
        self._log.add(at.copy(), acts)
        self._sent.update(sent)
        self._board.action[rows] = acts
        if self._settling.unfit:
            rows = self._row[[index for index in sent if index not in self._settling.unfit]]
            self._settling.unfit -= sent.keys()
        crew.order(rows, STEP)
        crew.look_at_times()

    def _send_all(self, crew: WorkerPool, actions: Array) -> None:
        """The same, by the shortest way: each env has its own row."""
        acts = self._acts(actions, len(self._everyone))
        self._board.action[:] = acts
        crew.order(slice(None), STEP)  # first of all: while they work, we note what they do
        self._log.add(None, acts.copy())
        self._sent.update(self._all_sent)
        crew.look_at_times()

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order; without `ids`, of those that are ready, as sent."""
        if ids is None:
            at = self._ready(least)
            return at, self._results.of(at)
        at = np.asarray(ids)
        if ids is self._everyone and len(self._sent) == len(at) and not self.config.pre_reset:
            return at, self._recv_all()
        self._refuse_unsent(at.tolist())
        self._wait(at)
        return at, self._results.of(at)

    def _ready(self, least: int) -> Array:
        """Those that are, as soon as so many of those that were sent are."""
        if not self._sent:
            raise ValueError("no env was sent; send some before they are received")
        while True:
            ready, others = self._parted()
            missing = self._enough(least) - len(ready)
            if missing <= 0:
                return ready
            self._team.wait(self._settling.source[others], busy=len(others) - missing)

    def _enough(self, least: int) -> int:
        return min(least, len(self._sent))

    def has_ready(self, least: int) -> bool:
        """Whether `recv` without ids would not wait."""
        self._team.look_again()
        return len(self._parted()[0]) >= self._enough(least)

    @contextmanager
    def listening(self) -> Iterator[tuple[int, float]]:
        """Meanwhile this descriptor can be read when more may be ready; and when to look, at the latest."""
        with self._team.listening(self._settling.source[list(self._sent)]) as bell:
            yield bell, self._team.nap_s

    def _parted(self) -> tuple[Array, Array]:
        """The envs that are ready, and the others that were sent; of these, some may begin anew."""
        ready: list[int] = []
        others: list[int] = []
        for index in self._sent:
            idle = not self._board.todo[self._settling.source[index]]
            (ready if idle and self._settling.settle(index) else others).append(index)
        return np.array(ready, np.int64), np.array(others, np.int64)

    def _refuse_unsent(self, at: list[int]) -> None:
        if missing := set(at) - self._sent.keys():
            raise ValueError(f"env {min(missing)} was not sent; send it before it is received")

    def _wait(self, at: Array) -> None:
        """Until all of these have what they were sent for, whatever it takes."""
        crew = self._team
        while True:
            crew.wait(self._settling.source[at])
            if self._results.all_plain():
                return
            if not [index for index in at.tolist() if not self._settling.settle(index)]:
                return

    def _recv_all(self) -> Steps:
        """The steps of all envs, each in its own row: the shortest way."""
        self._team.wait()
        if self._settling.odd or not self._results.all_sound():
            self._wait(self._everyone)
        if self._settling.odd:
            return self._results.of(self._everyone)
        return self._results.of_all()

    def _lost(self, number: int, blamed: int, why: str, limit_s: float | None) -> None:
        if self._restoring is not None:
            self._restoring.lost(number, why)
        else:
            self._settling.lost(number, blamed, why, limit_s)

    # saving

    def _save(self) -> dict[str, Any] | None:
        if self._crew is None:
            return None
        if self._sent:
            raise ValueError("steps are under way; receive them before the envs are saved")
        seen, carried = self._board.obs[self._row], self._settling.carried
        saved = encode_histories(self._log, carried, seen, self._action_column)
        return {**saved, "failures": self._failures.state_dict()}

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Play the episodes again with new workers, up to where they were."""
        try:
            self._crew = self._open()
            settling = self._settle_anew(self._crew)
            self._failures.load_state_dict(saved["failures"])
            plays = decode_histories(saved, self._accounts)
            self._restoring = SavedEnvsRestorer(self._crew)
            why_not = self._restoring.why_not(plays)
            self._restoring = None
            for index, played in enumerate(plays):
                settling.restored(index, played, why_not.get(index, ""))
            self._look_ahead()
        except BaseException:
            self._restoring = None
            with suppress(EnvCloseError):  # what comes first is told
                self.close()
            raise
