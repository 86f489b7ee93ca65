"""The base of env managers whose envs are in workers: processes or threads, with several envs each.

The manager and its workers share one row for each env (`workers/shared_rows.py`). The manager writes commands to the
rows and wakes the workers; workers write results. An `EnvTracker` follows each env from its command to its result,
with the retries that this takes, and a `StepAssembler` makes `Steps` of the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.core.facts import Facts, Surroundings
from flowrl.machine.cores import usable_cores
from flowrl.nodes.env_managers.env_error import EnvCloseError
from flowrl.nodes.env_managers.env_history import decode_histories, encode_histories
from flowrl.nodes.env_managers.env_manager import EnvManager, config_for_clients
from flowrl.nodes.env_managers.env_tracker import EnvTracker
from flowrl.nodes.env_managers.failures import (
    FailureConfig,
    FailureCounts,
    FailureTracker,
    nondeterminism_of_retries,
)
from flowrl.nodes.env_managers.history_replay import SavedEnvsRestorer
from flowrl.nodes.env_managers.step_assembler import StepAssembler
from flowrl.nodes.env_managers.workers.adaptive_wait import MAX_SPIN_S
from flowrl.nodes.env_managers.workers.pipe_waker import ManagerWaker
from flowrl.nodes.env_managers.workers.shared_rows import CLOSE_FAILED, RESET, STEP, SharedRows
from flowrl.nodes.env_managers.workers.worker import STOP_TIMEOUT_S, Worker
from flowrl.nodes.env_managers.workers.worker_pool import WorkerPool
from flowrl.nodes.envs.steps import Steps
from flowrl.nodes.envs.wrappers.wrapper import refuse_carry_over, refuse_wrappers_across_episodes


class WorkerEnvManager(EnvManager):
    """Subclasses define the shared memory and how a worker is started."""

    class Config(FailureConfig):
        envs_per_worker: int | None = param(
            None, "envs in each worker; default: as many as make one worker per core", ge=1
        )
        pre_reset: bool = param(
            False, "begin each env's next episode ahead of time, in a spare env of another worker"
        )
        connect_timeout_s: float = param(
            60.0, "a worker that takes longer to start has failed", gt=0
        )
        max_worker_bytes: int | None = param(
            None, "a worker process that holds more memory is replaced between two steps", gt=0
        )

    max_spin_s = MAX_SPIN_S  # how long to poll for results before sleeping

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The facts. Refuse `pre_reset` for envs whose episodes depend on earlier ones."""
        if config.pre_reset:
            env = config_for_clients(config, surroundings.client_roles).env
            refuse_wrappers_across_episodes(env)
        return super().describe(config, surroundings)

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Why two runs may differ: failed envs are retried."""
        return nondeterminism_of_retries(config)

    def setup(self) -> None:
        """Prepare everything but the workers, which are started at the first reset."""
        super().setup()
        if self.config.pre_reset:
            refuse_wrappers_across_episodes(self.config.env)
        count = self.config.count
        self._pool: WorkerPool | None = None
        self._restorer: SavedEnvsRestorer | None = None  # while saved envs are replayed
        self._failures = FailureTracker(self.config, self.ctx)
        self._all_ids = np.arange(count)
        self._all_ids.flags.writeable = False  # returned when all envs are ready
        self._all_sent = dict.fromkeys(range(count))
        self._check_finite = np.dtype(self._obs_column.dtype).kind == "f"

    @property
    def failures(self) -> FailureCounts:
        """The failures so far."""
        return self._failures.counts

    # workers

    @property
    def pool(self) -> WorkerPool:
        """The workers; an error before the first reset."""
        if self._pool is None:
            raise ValueError("env manager: no episode has begun; call reset() first")
        return self._pool

    def _start_pool(self) -> WorkerPool:
        c = self.config
        size = c.envs_per_worker or self._default_envs_per_worker()
        groups = [range(first, min(first + size, c.count)) for first in range(0, c.count, size)]
        if c.pre_reset:
            groups += [range(rows.start + c.count, rows.stop + c.count) for rows in groups]
        self._groups = groups
        self._shared = self._make_shared_rows(c.count * (1 + c.pre_reset), len(groups))
        self._row = np.arange(c.count)  # in which each env plays
        return WorkerPool(
            self._shared,
            groups,
            self._start_worker,
            self._replace_worker,
            self._failures.count_dropped_output,
            c,
            self.max_spin_s,
        )

    def _default_envs_per_worker(self) -> int:
        return -(-self.config.count // usable_cores())

    def _make_shared_rows(self, rows: int, workers: int) -> SharedRows:
        raise NotImplementedError

    def _start_worker(self, worker: int, manager_waker: ManagerWaker) -> Worker:
        raise NotImplementedError

    def _replace_worker(
        self, worker: int, busy_row: int, reason: str, limit_s: float | None
    ) -> None:
        if self._restorer is not None:
            self._restorer.replace_worker(worker, reason)
        else:
            self._tracker.replace_worker(worker, busy_row, reason, limit_s)

    def close(self) -> None:
        """Stop the workers. A later reset starts others."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            unstopped = pool.close()
            self._raise_close_error([row for worker in unstopped for row in pool.rows_of[worker]])

    def _raise_close_error(self, hung_rows: list[int]) -> None:
        """Raise the error of the first env that raised when it was closed, or whose worker did not stop in time."""
        shared = self._shared
        late = f"close took longer than {STOP_TIMEOUT_S:g} s; its worker was discarded"
        failures = dict.fromkeys(hung_rows, late)
        for row in np.flatnonzero(shared.flags & CLOSE_FAILED).tolist():
            failures[row] = shared.read_error(row).partition("\n")[0]
        if failures:
            row, what = min(failures.items())
            raise EnvCloseError(f"env {row % self.config.count}: {what}")

    # episodes

    def reset(self) -> Array:
        """Begin a new episode in each env; return the first observations (B, …)."""
        try:
            return self._reset()
        except BaseException:
            with suppress(EnvCloseError):  # the first error is raised
                self.close()
            raise

    def _reset(self) -> Array:
        if self._pool is None:
            self._pool = self._start_pool()
        else:
            self._pool.wait()  # for pending steps, whose results are not used
        self.statistics.restart()
        tracker, shared = self._new_tracker(self._pool), self._shared
        shared.flags[:] = 0
        for index in self._ids:
            tracker.start_episode(index, int(self._row[index]), RESET)
        self._wait_for(self._all_ids)
        tracker.finish_reset_of_all()
        self._prepare_next_episodes()
        return shared.obs[self._row]

    def _apply_reset_options(self) -> None:
        if self._pool is not None:
            self._tracker.change_reset_options(self._reset_options)

    def _new_tracker(self, pool: WorkerPool) -> EnvTracker:
        tracker = self._tracker = EnvTracker(
            pool,
            self.config,
            self.statistics,
            self._failures,
            self._row,
            self._check_finite,
            self._make_error,
            self._reset_options,
        )
        self._envs, self._sent = tracker.envs, tracker.envs.sent
        self._assembler = StepAssembler(tracker, self._failures, self._check_finite)
        return tracker

    def _prepare_next_episodes(self) -> None:
        """All envs are in their episodes: have the next ones begun, or write how they begin."""
        if self.config.pre_reset:
            refuse_carry_over(self._envs.carried)
            for index in self._ids:
                row = self._envs.other_row(int(self._row[index]))
                self._tracker.start_spare_episode(index, row)
        else:
            self._tracker.write_next_starts(self._ids)
        self._failures.report()

    # stepping

    def advance(self, actions: Array, ids: Sequence[int] | None = None) -> Steps:
        """Step all envs, or those of `ids`, each with its row of `actions` (B, …)."""
        at = self._all_ids if ids is None else np.asarray(ids)
        self.send(at, actions)
        return self.recv(at)[1]

    def send(self, ids: Array, actions: Array) -> None:
        """Begin to step these envs, each with its row of `actions`. `recv` returns the results."""
        pool = self.pool
        if ids is self._all_ids and not (
            self._sent or self._envs.failed_while_idle or self.config.pre_reset
        ):
            self._send_all(pool, actions)
            return
        at = np.asarray(ids)
        acts = self._convert_actions(actions, len(at)).copy()
        self._require_steppable(at.tolist(), self._sent)
        sent = dict.fromkeys(at.tolist())
        rows = self._row[at]
        self._envs.log.add(at.copy(), acts)
        self._sent.update(sent)
        self._shared.action[rows] = acts
        failed = self._envs.failed_while_idle
        if failed:  # their failure is the result of this step
            rows = self._row[[index for index in sent if index not in failed]]
            failed.difference_update(sent)
        pool.send_command(rows, STEP)
        pool.count_step()

    def _send_all(self, pool: WorkerPool, actions: Array) -> None:
        """Send all envs, each of which plays in its own row. This is the fastest path."""
        acts = self._convert_actions(actions, len(self._all_ids))
        self._shared.action[:] = acts
        pool.send_command(slice(None), STEP)  # first, so that workers run during the bookkeeping
        self._envs.log.add(None, acts.copy())
        self._sent.update(self._all_sent)
        pool.count_step()

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs, in this order. Without `ids`: of at least `least` envs, whichever are ready."""
        if ids is None:
            at = self._wait_for_ready(least)
            return at, self._assembler.assemble(at)
        at = np.asarray(ids)
        if ids is self._all_ids and len(self._sent) == len(at) and not self.config.pre_reset:
            return at, self._recv_all()
        self._require_sent(at.tolist())
        self._wait_for(at)
        return at, self._assembler.assemble(at)

    def _recv_all(self) -> Steps:
        """Receive all envs, each of which plays in its own row. This is the fastest path."""
        self.pool.wait()
        if self._tracker.restarted or not self._assembler.all_succeeded():
            self._wait_for(self._all_ids)
        if self._tracker.restarted:
            return self._assembler.assemble(self._all_ids)
        return self._assembler.assemble_all()

    def _require_sent(self, at: list[int]) -> None:
        if missing := set(at) - self._sent.keys():
            raise ValueError(f"env {min(missing)}: it was not sent; send it before receiving it")

    def _wait_for(self, at: Array) -> None:
        """Wait until all of these envs have their results, retries included."""
        pool = self.pool
        while True:
            pool.wait(self._envs.obs_row[at])
            if self._assembler.all_are_plain():
                return
            pending = [index for index in at.tolist() if not self._tracker.resolve_result(index)]
            if not pending:
                return

    def _wait_for_ready(self, least: int) -> Array:
        """Wait until at least `least` of the sent envs are ready; return all that are."""
        if not self._sent:
            raise ValueError("env manager: no env was sent; send some before receiving")
        while True:
            ready, others = self._split_sent()
            missing = self._least_of_sent(least) - len(ready)
            if missing <= 0:
                return ready
            self.pool.wait(self._envs.obs_row[others], max_busy=len(others) - missing)

    def _least_of_sent(self, least: int) -> int:
        return min(least, len(self._sent))

    def _split_sent(self) -> tuple[Array, Array]:
        """The sent envs that have their results, and the others. Send the next commands of those that failed."""
        ready: list[int] = []
        others: list[int] = []
        for index in self._sent:
            is_idle = not self._shared.command[self._envs.obs_row[index]]
            has_result = is_idle and self._tracker.resolve_result(index)
            (ready if has_result else others).append(index)
        return np.array(ready, np.int64), np.array(others, np.int64)

    def has_ready(self, least: int) -> bool:
        """Whether `recv(least=least)` would return without waiting."""
        self.pool.check_workers_if_due()
        return len(self._split_sent()[0]) >= self._least_of_sent(least)

    @contextmanager
    def listening(self) -> Iterator[tuple[int, float]]:
        """Have workers signal results at a descriptor.

        The context is the descriptor, which becomes readable when more envs may be ready, and the longest time to
        wait for that before calling `has_ready`.
        """
        with self.pool.listening(self._envs.obs_row[list(self._sent)]) as descriptor:
            yield descriptor, self.pool.check_interval_s

    # saving

    def _save_envs(self) -> dict[str, Any] | None:
        if self._pool is None:
            return None
        if self._sent:
            raise ValueError("env manager: steps are pending; receive them before saving the envs")
        envs = self._envs
        obs = self._shared.obs[self._row]
        saved = encode_histories(envs.log, envs.carried, obs, self._action_column)
        return {**saved, "failures": self._failures.state_dict()}

    def _restore_envs(self, saved: Mapping[str, Any]) -> None:
        """Replay the envs' histories in new workers."""
        try:
            self._pool = self._start_pool()
            tracker = self._new_tracker(self._pool)
            self._failures.load_state_dict(saved["failures"])
            histories = decode_histories(saved, self.statistics)
            self._restorer = SavedEnvsRestorer(self._pool)
            reasons = self._restorer.restore(histories)
            self._restorer = None
            for index, history in enumerate(histories):
                tracker.adopt_history(index, history, reasons.get(index, ""))
            self._prepare_next_episodes()
        except BaseException:
            self._restorer = None
            with suppress(EnvCloseError):  # the first error is raised
                self.close()
            raise
