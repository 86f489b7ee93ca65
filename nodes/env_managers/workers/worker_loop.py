"""The worker's side of a board: does what is ordered for its envs, in a process or a thread."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from flowrl.nodes.env_managers.carry_over import CarryOverLayers, carry_over_layers
from flowrl.nodes.env_managers.env_error import describe_failure
from flowrl.nodes.env_managers.workers.adaptive_wait import AdaptiveWait
from flowrl.nodes.env_managers.workers.shared_rows import (
    ASLEEP,
    AWAKE,
    CLOSE_FAILED,
    FAILED,
    IDLE,
    NEXT_RESET_FAILED,
    RECREATE,
    RESET,
    RUNNING,
    STEP,
    STOPPING,
    TERMINATED,
    TRUNCATED,
    SharedRows,
)
from flowrl.nodes.envs.output_checks import (
    MAX_REWARD,
    check_observation,
    check_observations,
    check_rewards,
)
from flowrl.nodes.observations import NestedColumns, ObsColumns

DOING_BITS = 24  # of `doing`: the row and the order; above them, how many things were done before


class WorkerLoop:
    """The envs of one worker. `alive` says whether this worker has not been given up."""

    def __init__(
        self,
        board: SharedRows,
        worker: int,
        rows: range,
        make: Callable[[int], Any],
        observed: ObsColumns,
        auto: bool,
        lock: Any = None,
    ) -> None:
        """`make` makes the env of a row; `auto`: an ended episode's next begins in the same step."""
        self.board, self.worker, self.rows, self._make, self._auto = board, worker, rows, make, auto
        self.alive = True
        self.lock = lock or Lock()  # held while a result is written; whoever gives us up takes it
        self._observed, self._dtype = observed, np.dtype(observed.dtype)
        choices = not isinstance(observed, NestedColumns) and observed.n is not None
        self._shape = (
            None if choices else board.obs.shape[1:]
        )  # of arrays that are taken as they are
        self._envs: dict[int, Any] = {}
        self._steps: dict[int, Callable[[Any], Any]] = {}
        self._carriers: dict[int, CarryOverLayers] = {}  # of the envs that have any
        self._know_returns: set[int] = set()  # the rows whose envs know their episode's better
        self._done = 0
        self._memory, self._todo = board.memory, board.places["todo"]
        self._flags = board.places["flags"]

    def serve(self, sleep: Callable[[], bool], wake: Callable[[], None], look_s: float) -> None:
        """Work until `sleep` says that it is over; `wake` is called when the manager sleeps."""
        board, memory, clock = self.board, self._memory, time.perf_counter
        begin, end = self._todo + self.rows.start, self._todo + self.rows.stop
        idle, adaptive_wait = bytes(len(self.rows)), AdaptiveWait(look_s)

        def ordered() -> bool:
            return memory[begin:end] != idle

        if board.state[self.worker] == STOPPING:
            return  # sent home before it began
        board.state[self.worker] = RUNNING
        while self.alive:
            since_s = clock()
            if not adaptive_wait.spin(ordered):
                board.rest[self.worker] = ASLEEP
                while True:
                    with self.lock:  # its atomic instruction: no look at `todo` before that is seen
                        found = ordered()
                    if found:
                        break
                    if not sleep():
                        return
                board.rest[self.worker] = AWAKE
            adaptive_wait.record_wait(since_s)
            self._work(memory[begin:end])
            if self.alive and self._waited_for():
                wake()

    def _waited_for(self) -> bool:
        """Whether the manager sleeps, and fewer are busy than it waits for."""
        board = self.board
        if not (fewer_than := board.waiting[0]):
            return False
        return bool(np.count_nonzero(board.todo[board.awaited]) < fewer_than)

    def _work(self, todo: bytes) -> None:
        """Steps come first: whoever ordered them waits, while resets may be for later."""
        board, first = self.board, self.rows.start
        steps = [row for row, order in enumerate(todo, first) if order == STEP]
        if steps:
            actions = list(board.action[first : self.rows.stop].copy())  # envs may keep them
            for row in steps:
                self._step(row, actions[row - first])
            return
        row, order = next((row, order) for row, order in enumerate(todo, first) if order)
        if board.pause[row]:
            time.sleep(board.pause[row])
        self._finish(row, self._begin(row, order == RECREATE) and FAILED)

    def _step(self, row: int, action: Any) -> None:
        """(Every word here costs: `_tell` and `_is_done` are written out.)"""
        board = self.board
        self._done = done = self._done + 1
        if self.alive:
            board.set_doing[self.worker] = done << DOING_BITS | (row + 1) << 2 | STEP
        try:
            obs, reward, final, cut, _ = self._steps[row](action)
            if not (isinstance(reward, float) and -MAX_REWARD <= reward <= MAX_REWARD):
                reward = check_rewards([reward])[0]
            over = final or cut
            into = board.last if over else board.obs
            with self.lock:
                if not self.alive:
                    return
                board.set_reward[row] = reward
                if (
                    type(obs) is np.ndarray
                    and obs.dtype == self._dtype
                    and obs.shape == self._shape
                ):
                    into[row] = obs
                else:
                    into[row] = check_observations([obs], self._observed, self._dtype)[0]
                if not over:
                    self._memory[self._flags + row] = 0
                    board.set_doing[self.worker] = done << DOING_BITS
                    self._memory[self._todo + row] = IDLE
        except Exception as error:
            self._write(row, "step", error)
            return self._finish(row, FAILED)
        if over:
            self._end(row, (TERMINATED if final else 0) | (TRUNCATED if cut else 0))

    def _end(self, row: int, flags: int) -> None:
        knows = row in self._know_returns
        self.board.total[row] = self._envs[row].unwrapped_return if knows else np.nan
        if self._auto:
            flags |= self._begin(row) and NEXT_RESET_FAILED
        self._finish(row, flags)

    def _begin(self, row: int, renew: bool = False) -> bool:
        """Begin an episode; whether that failed."""
        self._tell(row, RESET)
        board = self.board
        try:
            if renew:  # it has nothing of what was before
                board.carry(row, "")
            if renew or row not in self._envs:
                self._renew(row, board.carries(row))
            carriers = self._carriers.get(row)
            carried = "" if carriers is None else carriers.get()
            obs, _ = self._envs[row].reset(seed=int(board.seed[row]))
            found = check_observation(obs, self._observed, self._dtype)
        except Exception as error:
            self._write(row, "reset", error)
        else:
            with self.lock:
                if self.alive:
                    board.obs[row] = found
                    if carried:
                        board.carry(row, carried)
            return False
        return True

    def _renew(self, row: int, carried: str) -> None:
        """Make the env anew; it goes on with what another one carried."""
        old = self._envs.pop(row, None)
        if old is not None:
            try:
                old.close()
            except Exception as error:  # it has failed before: that it cannot be closed is no news
                print(
                    f"env {row} could not be closed: {describe_failure('close', error)}", flush=True
                )
        env = self._envs[row] = self._make(row)
        self._steps[row] = env.step
        if hasattr(env, "unwrapped_return"):
            self._know_returns.add(row)
        if (carriers := carry_over_layers(env)) is not None:
            carriers.set(carried)
            self._carriers[row] = carriers

    def _tell(self, row: int, order: int) -> None:
        self._done += 1
        if self.alive:
            self.board.set_doing[self.worker] = self._done << DOING_BITS | (row + 1) << 2 | order

    def _write(self, row: int, doing: str, error: Exception) -> None:
        what = f"{describe_failure(doing, error)}\n{''.join(traceback.format_exception(error))}"
        with self.lock:
            if self.alive:
                self.board.write(row, what)

    def _finish(self, row: int, flags: int) -> None:
        with self.lock:
            if self.alive:
                self._is_done(row, flags)

    def _is_done(self, row: int, flags: int) -> None:
        """Last of all the order is cleared: then the result is the manager's."""
        self._memory[self._flags + row] = flags
        self.board.set_doing[self.worker] = self._done << DOING_BITS
        self._memory[self._todo + row] = IDLE

    def close(self) -> None:
        """Close the envs, each of them, whatever others do."""
        for row, env in self._envs.items():
            try:
                env.close()
            except Exception as error:
                self._write(row, "close", error)
                self._memory[self._flags + row] = CLOSE_FAILED
        self._envs.clear()


def decode_activity(word: int) -> tuple[int, int]:
    """The row and the order that a worker's word `doing` names; -1 and IDLE where it rests."""
    low = word & ((1 << DOING_BITS) - 1)
    return (low >> 2) - 1, low & 3
