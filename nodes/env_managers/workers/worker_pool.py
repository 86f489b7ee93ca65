"""The workers of a manager: sends them commands, waits for results, and replaces workers that fail.

A worker has failed if its process or thread ended, if it exceeds a deadline, or if its process grew too large. The
pool checks this while it waits, and at regular numbers of steps. The owner's `replace_worker` decides what to do with
the envs; it calls `discard_worker` and `respawn`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.workers.adaptive_wait import AdaptiveWait
from flowrl.nodes.env_managers.workers.pipe_waker import ManagerWaker
from flowrl.nodes.env_managers.workers.scheduling_hints import (
    request_precise_timers,
    request_short_slices,
)
from flowrl.nodes.env_managers.workers.shared_rows import (
    ASLEEP,
    IDLE,
    STARTING,
    STEP,
    STOPPING,
    SharedRows,
)
from flowrl.nodes.env_managers.workers.worker import STOP_TIMEOUT_S, Worker
from flowrl.nodes.env_managers.workers.worker_loop import decode_activity

MAX_CHECK_INTERVAL_S = 0.05  # between checks of the workers while the manager waits
MAX_OUTPUT_BYTES = 16 << 20  # of a worker; more is dropped
STEPS_PER_CHECK = 1000  # so that workers are checked even if the manager never waits

# Arguments: the worker, the row that it is busy with (-1: none), what happened, and the deadline that it exceeded.
ReplaceWorker = Callable[[int, int, str, "float | None"], None]


class WorkerPool:
    """All workers of a manager."""

    def __init__(
        self,
        shared: SharedRows,
        rows_of: Sequence[range],
        start_worker: Callable[[int, ManagerWaker], Worker],
        replace_worker: ReplaceWorker,
        count_dropped_output: Callable[[int], None],
        config: Any,
        max_spin_s: float,
    ) -> None:
        """`rows_of` are the rows of each worker. `count_dropped_output` is called with the bytes that are dropped."""
        self.shared, self.rows_of = shared, rows_of
        self._start_worker, self._replace_worker = start_worker, replace_worker
        self._config = config
        request_short_slices()  # workers inherit this and the next
        request_precise_timers()
        self._count_dropped_output = count_dropped_output
        self.manager_waker = ManagerWaker()
        self._fence = Lock()  # acquiring it orders memory accesses on x86: see `wake_sleepers`
        self._adaptive_wait = AdaptiveWait(max_spin_s)
        limits_s = [config.step_timeout_s, config.reset_timeout_s]
        self.check_interval_s = min(
            [MAX_CHECK_INTERVAL_S, *(limit / 5 for limit in limits_s if limit is not None)]
        )
        self._checked_s, self._steps = 0.0, 0
        count, now_s = len(rows_of), time.monotonic()
        self._last_activity = [(0, now_s)] * count  # of each worker, and since when
        offsets = shared.offsets
        self._asleep_slice = slice(offsets["asleep"], offsets["asleep"] + count)
        self._command_offset = offsets["command"]
        self._command_slice = slice(self._command_offset, self._command_offset + shared.rows)
        self._all_idle = bytes(shared.rows)
        self.workers: list[Worker] = []
        try:
            for worker in range(count):
                self.workers.append(self._start(worker))
        except BaseException:
            self.close()
            raise

    def _start(self, worker: int) -> Worker:
        self.shared.state[worker] = STARTING
        self.shared.asleep[worker] = 0
        self.shared.activity[worker] = 0
        self._last_activity[worker] = (0, time.monotonic())
        try:
            return self._start_worker(worker, self.manager_waker)
        except OSError as error:
            raise OSError(
                error.errno,
                f"env worker {worker} of {len(self.rows_of)} cannot be started: {error.strerror}; use "
                "fewer workers (a larger envs_per_worker), or raise the limits (ulimit -n, ulimit -u)",
            ) from error

    # commands

    def send_command(self, rows: Array | slice | int, command: int) -> None:
        """Have a command carried out in these rows. Its arguments have been written before."""
        self.shared.command[rows] = command
        self.wake_sleepers()

    def wake_sleepers(self) -> None:
        """Wake the workers that sleep although they have a command.

        A worker that falls asleep after the fence sees its command. On processors that order memory less strictly than
        x86, a lock is no complete fence: a worker that seems awake may sleep without having seen it. So this is called
        again whenever the workers are checked, which bounds the delay.
        """
        with self._fence:
            asleep = self.shared.memory[self._asleep_slice]
        if ASLEEP in asleep:
            sleepers = [worker for worker, is_asleep in enumerate(asleep) if is_asleep]
            self._wake([worker for worker in sleepers if self._has_command(worker)])

    def _wake(self, workers: Iterable[int]) -> None:
        if self.shared.futex_waker is not None:
            self.shared.futex_waker.wake(workers)
            return
        for worker in workers:
            self.workers[worker].wake()

    def _has_command(self, worker: int) -> bool:
        rows = self.rows_of[worker]
        begin, end = self._command_offset + rows.start, self._command_offset + rows.stop
        return self.shared.memory[begin:end] != self._all_idle[: len(rows)]

    # waiting

    def all_are_idle(self) -> bool:
        """Whether every row has its result."""
        return self.shared.memory[self._command_slice] == self._all_idle

    def count_busy(self, rows: Array | None = None) -> int:
        """The number of these rows (None: of all) that have no result yet."""
        if rows is None:
            return self.shared.rows - self.shared.memory[self._command_slice].count(IDLE)
        return int(np.count_nonzero(self.shared.command[rows]))

    def wait(
        self, rows: Array | None = None, max_busy: int = 0, deadline: float | None = None
    ) -> None:
        """Wait until at most `max_busy` of these rows (None: of all) are busy, or until the deadline."""

        def few_are_busy() -> bool:
            return self.count_busy(rows) <= max_busy

        is_ready = self.all_are_idle if rows is None and not max_busy else few_are_busy
        if is_ready():
            return
        since_s = time.perf_counter()
        if not self._adaptive_wait.spin(is_ready):
            self._sleep_until(is_ready, rows, max_busy, deadline)
        self._adaptive_wait.record_wait(since_s)

    def _sleep_until(
        self,
        is_ready: Callable[[], bool],
        rows: Array | None,
        max_busy: int,
        deadline: float | None,
    ) -> None:
        while not is_ready():
            now_s = time.monotonic()
            if deadline is not None and now_s >= deadline:
                return
            self.shared.awaited[:] = rows is None
            if rows is not None:
                self.shared.awaited[rows] = True
            timeout_s = self.check_interval_s
            if deadline is not None:
                timeout_s = min(timeout_s, deadline - now_s)
            self._sleep(is_ready, max_busy, timeout_s)
            self.check_workers_if_due()

    def _sleep(self, is_ready: Callable[[], bool], max_busy: int, timeout_s: float) -> None:
        """Sleep until a worker sees that at most `max_busy` awaited rows are busy, or for this time."""
        wake_below = self.shared.wake_below
        wake_below[0] = max_busy + 1
        with self._fence:  # a worker that finishes after this sees `wake_below`; if not, the time-out ends the sleep
            ready = is_ready()
        if not ready:
            self.manager_waker.sleep(timeout_s)
        wake_below[0] = 0

    @contextmanager
    def listening(self, rows: Array) -> Iterator[int]:
        """Have workers signal each result in one of these rows at a descriptor, which then becomes readable."""
        self.shared.awaited[:] = False
        self.shared.awaited[rows] = True
        self.shared.wake_below[0] = self.count_busy(rows)
        with self._fence:  # a worker that finishes after this sees `wake_below`
            pass
        try:
            yield self.manager_waker.read_fd
        finally:
            self.shared.wake_below[0] = 0
            self.manager_waker.sleep(0.0)

    # failures

    def count_step(self) -> None:
        """Count a step of the manager, and check the workers if enough were taken since the last check."""
        self._steps += 1
        if self._steps >= STEPS_PER_CHECK:
            self._steps = 0
            self.check_workers()
            self.check_memory()

    def check_workers_if_due(self) -> None:
        """Check the workers if the last check was long enough ago."""
        if time.monotonic() - self._checked_s > self.check_interval_s:
            self.check_workers()

    def check_workers(self) -> None:
        """Replace workers that ended or exceed a deadline; repair lost wake-ups; drop excessive output."""
        self._checked_s = time.monotonic()
        self.wake_sleepers()
        for number, worker in enumerate(self.workers):
            reason, limit_s = worker.failure(), None
            if reason is None:
                reason, limit_s = self._exceeded_deadline(number)
            if reason is not None:
                row, _ = decode_activity(int(self.shared.activity[number]))
                self._replace_worker(number, row, reason, limit_s)
            elif (output_bytes := worker.output_bytes()) > MAX_OUTPUT_BYTES:
                self._count_dropped_output(output_bytes)
                worker.drop_output()

    def check_memory(self) -> None:
        """Replace workers that hold too much memory. (This is rare, so a limit that is too low is no endless loop.)"""
        limit = self._config.max_worker_bytes
        for number, worker in enumerate(self.workers):
            if limit is not None and worker.memory_bytes() > limit:
                self._replace_worker(number, -1, "it grew too large (max_worker_bytes)", None)

    def _exceeded_deadline(self, worker: int) -> tuple[str | None, float | None]:
        """What a worker has been doing for too long, and the deadline of that; None if it has not."""
        activity, now_s = int(self.shared.activity[worker]), time.monotonic()
        config = self._config
        if self.shared.state[worker] == STARTING:
            limit_s = config.connect_timeout_s
            if now_s - self._last_activity[worker][1] > limit_s:
                return f"it did not start within {limit_s:g} s (connect_timeout_s)", None
            return None, None
        row, command = decode_activity(activity)
        delay_s = 0.0
        if row < 0:  # it rests; if it has a command, something may have stopped it
            row, command = self._pending_command(worker)
            delay_s = float(self.shared.delay_s[row])
            activity = -1 - activity if command else activity
        if activity != self._last_activity[worker][0]:
            self._last_activity[worker] = (activity, now_s)
        if command == IDLE:
            return None, None
        call = "step" if command == STEP else "reset"
        limit_s = getattr(config, f"{call}_timeout_s")
        if limit_s is None or now_s - self._last_activity[worker][1] <= limit_s + delay_s:
            return None, None
        return f"{call} took longer than {limit_s:g} s ({call}_timeout_s)", limit_s

    def _pending_command(self, worker: int) -> tuple[int, int]:
        """A row of the worker with a command, and the command; any row and IDLE if there is none."""
        rows = self.rows_of[worker]
        commands = self.shared.command[rows.start : rows.stop].tolist()
        return max(zip(rows, commands, strict=True), key=lambda pending: pending[1])

    def discard_worker(self, number: int) -> str:
        """End a worker, and make its rows idle. Return the end of its output."""
        worker = self.workers[number]
        output = worker.output_tail()
        worker.discard()
        rows = self.rows_of[number]
        self.shared.command[rows.start : rows.stop] = IDLE
        return output

    def respawn(self, number: int) -> None:
        """Start another worker in place of a discarded one."""
        self.workers[number] = self._start(number)

    def close(self) -> list[int]:
        """Stop all workers in bounded time. Return those that had started and did not stop by themselves."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        had_started = (self.shared.state != STARTING).tolist()
        self.shared.state[:] = STOPPING
        self._wake(range(len(self.workers)))
        has_ended = [worker.join(deadline) for worker in self.workers]
        self.manager_waker.close()
        return [n for n, ended in enumerate(has_ended) if had_started[n] and not ended]
