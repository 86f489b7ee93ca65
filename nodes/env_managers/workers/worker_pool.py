"""All workers of a manager: they are given orders, waited for, watched, and replaced where they fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.workers.adaptive_wait import AdaptiveWait
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
from flowrl.nodes.env_managers.workers.worker import STOP_TIMEOUT_S, ManagerWaker, Worker
from flowrl.nodes.env_managers.workers.worker_loop import decode_activity

NAP_S = 0.05  # the longest sleep without a look at the workers
MOST_OUTPUT_BYTES = 16 << 20  # of a worker; what is printed beyond is dropped
LOOK_EVERY = 1000  # steps between two looks at workers that never made us wait

Lost = Callable[
    [int, int, str, "float | None"], None
]  # worker, row that it was busy with, why, deadline


class WorkerPool:
    """The workers; `lost` is called when one had to be given up, and calls `hire_again`."""

    def __init__(
        self,
        board: SharedRows,
        rows: Sequence[range],
        hire: Callable[[int, ManagerWaker], Worker],
        lost: Lost,
        config: Any,
        look_s: float,
    ) -> None:
        self.board, self.rows, self._hire, self._lost, self._config = (
            board,
            rows,
            hire,
            lost,
            config,
        )
        request_short_slices()  # who is hired inherits this
        request_precise_timers()  # and this
        self.dropped_output_bytes = 0
        self.answers = ManagerWaker()
        self._fence = Lock()
        self._adaptive_wait = AdaptiveWait(look_s)
        limits = [config.step_timeout_s, config.reset_timeout_s]
        self.nap_s = min([NAP_S, *(limit / 5 for limit in limits if limit is not None)])
        self._looked_s, self._steps = 0.0, 0
        now = time.monotonic()
        self._seen = [(0, now)] * len(rows)  # each worker's `doing`, and since when
        places, n = board.places, len(rows)
        self._rest = slice(places["rest"], places["rest"] + n)
        self._todo = places["todo"]
        self._every = slice(self._todo, self._todo + board.rows)
        self._idle = bytes(board.rows)
        self.workers: list[Worker] = []
        try:
            for worker in range(n):
                self.workers.append(self._begin(worker))
        except BaseException:
            self.close()
            raise

    def _begin(self, worker: int) -> Worker:
        self.board.state[worker] = STARTING
        self.board.rest[worker] = 0
        self.board.doing[worker] = 0
        self._seen[worker] = (0, time.monotonic())
        try:
            return self._hire(worker, self.answers)
        except OSError as error:
            raise OSError(
                error.errno,
                f"worker {worker} of {len(self.rows)} cannot be started: {error.strerror}; fewer are "
                "needed with a larger envs_per_worker, or raise the limits (ulimit -n, ulimit -u)",
            ) from error

    # orders

    def order(self, rows: Array | slice | int, order: int) -> None:
        """Have something done with these rows; all else that it needs is on the board already."""
        self.board.todo[rows] = order
        self.wake()

    def wake(self) -> None:
        """Wake those who sleep, and have something to do."""
        memory = self.board.memory
        with self._fence:  # its atomic instruction: what we wrote is seen by who sleeps after it
            resting = memory[self._rest]
        if ASLEEP in resting:
            self._wake(
                [n for n, rests in enumerate(resting) if rests and not self._rests_rightly(n)]
            )

    def _wake(self, workers: Iterable[int]) -> None:
        if self.board.gong is not None:
            self.board.gong.wake(workers)
            return
        for worker in workers:
            self.workers[worker].wake()

    def _rests_rightly(self, worker: int) -> bool:
        rows = self.rows[worker]
        begin, end = self._todo + rows.start, self._todo + rows.stop
        return self.board.memory[begin:end] == self._idle[: len(rows)]

    def all_idle(self) -> bool:
        """Whether every row has its result."""
        return self.board.memory[self._every] == self._idle

    def wait(self, rows: Array | None = None, busy: int = 0, until_s: float | None = None) -> None:
        """Until at most `busy` of these rows (by default of all) are, or a moment has come."""
        ready = self.all_idle if rows is None and not busy else lambda: self.busy(rows) <= busy
        if ready():
            return
        since_s = time.perf_counter()
        if not self._adaptive_wait.spin(ready):
            self._sleep_until(ready, rows, busy, until_s)
        self._adaptive_wait.record_wait(since_s)

    def busy(self, rows: Array | None = None) -> int:
        """How many of these rows (by default of all) have no result yet."""
        if rows is None:
            return self.board.rows - self.board.memory[self._every].count(IDLE)
        return int(np.count_nonzero(self.board.todo[rows]))

    def _sleep_until(
        self, ready: Callable[[], bool], rows: Array | None, busy: int, until_s: float | None
    ) -> None:
        clock = time.monotonic
        while not ready():
            now = clock()
            if until_s is not None and now >= until_s:
                return
            self.board.awaited[:] = rows is None
            if rows is not None:
                self.board.awaited[rows] = True
            self._sleep(ready, busy, self.nap_s if until_s is None else until_s - now)
            self.look_again()

    def _sleep(self, ready: Callable[[], bool], busy: int, longest_s: float) -> None:
        """Nobody wakes us for less than we wait for."""
        waiting = self.board.waiting
        waiting[0] = busy + 1
        with self._fence:
            now = ready()
        if not now:
            self.answers.wait(min(longest_s, self.nap_s))
        waiting[0] = 0

    @contextmanager
    def listening(self, rows: Array) -> Iterator[int]:
        """Meanwhile workers ring when they are done with one of these rows: at this descriptor."""
        self.board.awaited[:] = False
        self.board.awaited[rows] = True
        self.board.waiting[0] = self.busy(rows)
        with self._fence:  # its atomic instruction: see `_sleep`
            pass
        try:
            yield self.answers.ear
        finally:
            self.board.waiting[0] = 0
            self.answers.wait(0.0)

    def look_again(self) -> None:
        """Look after them, if it is time."""
        if time.monotonic() - self._looked_s > self.nap_s:
            self.look()

    # looking after them

    def look_at_times(self) -> None:
        """Called at each step: at all workers now and then, also where none ever makes us wait."""
        self._steps += 1
        if self._steps >= LOOK_EVERY:
            self._steps = 0
            self.look()
            self.look_at_sizes()

    def look(self) -> None:
        """Replace who died, hangs, or grew too large; drop what nobody will read."""
        self._looked_s = time.monotonic()
        for number, worker in enumerate(self.workers):
            why, limit_s = worker.why_dead(), None
            if why is None:
                why, limit_s = self._too_long(number)
            if why is not None:
                row, _ = decode_activity(int(self.board.doing[number]))
                self._lost(number, row, why, limit_s)
            elif (printed := worker.printed_bytes()) > MOST_OUTPUT_BYTES:
                self.dropped_output_bytes += printed
                worker.drop_output()

    def look_at_sizes(self) -> None:
        """Replace those that hold too much memory. (Not as often: a limit too low is no endless loop.)"""
        most = self._config.max_worker_bytes
        for number, worker in enumerate(self.workers):
            if most is not None and worker.memory_bytes() > most:
                self._lost(number, -1, "it grew too large (max_worker_bytes)", None)

    def _too_long(self, number: int) -> tuple[str | None, float | None]:
        """Whether a worker has been busy with one thing for longer than is allowed."""
        word, now = int(self.board.doing[number]), time.monotonic()
        config = self._config
        if self.board.state[number] == STARTING:
            if now - self._seen[number][1] > config.connect_timeout_s:
                return (
                    f"no worker began in {config.connect_timeout_s:g} s (connect_timeout_s)",
                    None,
                )
            return None, None
        row, order = decode_activity(word)
        pause_s = 0.0
        if row < 0:  # it rests, though there is something to do: perhaps somebody has stopped it
            row, order = self._ordered(number)
            pause_s = float(self.board.pause[row])
            word = -1 - word if order else word
        if word != self._seen[number][0]:
            self._seen[number] = (word, now)
        if order == IDLE:
            return None, None
        doing = "step" if order == STEP else "reset"
        name = f"{doing}_timeout_s"
        limit = getattr(config, name)
        if limit is None or now - self._seen[number][1] <= limit + pause_s:
            return None, None
        return f"{doing} took longer than {limit:g} s ({name})", limit

    def _ordered(self, number: int) -> tuple[int, int]:
        """A row and an order of a worker's that it has not begun; any row and IDLE where there is none."""
        rows = self.rows[number]
        orders = self.board.todo[rows.start : rows.stop].tolist()
        return max(zip(rows, orders, strict=True), key=lambda ordered: ordered[1])

    def give_up(self, number: int) -> str:
        """End a worker; the end of what it printed. Its rows are idle then."""
        worker = self.workers[number]
        tail = worker.tail()
        worker.give_up()
        rows = self.rows[number]
        self.board.todo[rows.start : rows.stop] = IDLE
        return tail

    def hire_again(self, number: int) -> None:
        """Another worker in its place."""
        self.workers[number] = self._begin(number)

    def close(self) -> list[int]:
        """Send all home, in bounded time; the workers that had envs and did not leave by themselves."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        began = (self.board.state != STARTING).tolist()
        self.board.state[:] = STOPPING
        self._wake(range(len(self.workers)))
        left = [worker.leave(deadline) for worker in self.workers]
        self.answers.close()
        return [n for n, has_left in enumerate(left) if began[n] and not has_left]


def usable_cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
