"""What a worker does, in a process or a thread: it carries out the commands in its rows.

Whatever a worker is doing stands in its `activity` word: from the lowest bit on, the command (2 bits), the row plus 1
(0: none), and above `ACTIVITY_BITS` a counter, so that the manager sees whether the worker makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.env_error import describe_failure, env_traceback
from flowrl.nodes.env_managers.env_history import CarryOverLayers, carry_over_layers
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
from flowrl.nodes.envs.info import InfoReader, recording_step
from flowrl.nodes.envs.output_checks import (
    MAX_REWARD,
    check_ends,
    check_observation,
    check_observations,
    check_rewards,
)
from flowrl.nodes.observations import NestedColumns, ObsColumns

ACTIVITY_BITS = 24

# What an env's code may raise in a worker. Ctrl-C raises nothing there: it reaches the manager's main thread only.
RAISED = (Exception, KeyboardInterrupt)


class WorkerLoop:
    """The envs of one worker.

    A thread that hangs cannot be ended, only abandoned. Then `is_active` is false, and it writes no results anymore:
    results are written under `lock`, which is held to clear `is_active`.
    """

    def __init__(
        self,
        shared: SharedRows,
        worker: int,
        rows: range,
        make_env: Callable[[int], Any],
        obs: ObsColumns,
        auto_reset: bool,
    ) -> None:
        """`make_env` makes the env of a row. With `auto_reset`, a step that ends an episode begins the next one."""
        self.shared, self.worker, self.rows = shared, worker, rows
        self._make_env, self._auto_reset = make_env, auto_reset
        self.is_active = True
        self.lock = Lock()
        self._obs_columns, self._obs_dtype = obs, np.dtype(obs.dtype)
        # An array of this shape and dtype needs no further check. (Observations of choices and nested ones do.)
        is_array = not isinstance(obs, NestedColumns) and obs.n is None
        self._array_shape = shared.obs.shape[1:] if is_array else None
        self._envs: dict[int, Any] = {}
        self._step_calls: dict[int, Callable[[Any], Any]] = {}
        self._carry_over: dict[int, CarryOverLayers] = {}  # of envs that carry data over
        self._rows_with_own_return: set[int] = set()
        self._info_reader = InfoReader(shared.info_columns)
        self._activity_count = 0
        self._memory = shared.memory
        self._command_offset = shared.offsets["command"]
        self._flags_offset = shared.offsets["flags"]

    def run(
        self, sleep: Callable[[], bool], wake_manager: Callable[[], None], max_spin_s: float
    ) -> None:
        """Carry out commands until `sleep`, which waits for one, returns false."""
        shared, memory, clock = self.shared, self._memory, time.perf_counter
        begin = self._command_offset + self.rows.start
        end = self._command_offset + self.rows.stop
        idle, adaptive_wait = bytes(len(self.rows)), AdaptiveWait(max_spin_s)

        def has_command() -> bool:
            return memory[begin:end] != idle

        if shared.state[self.worker] == STOPPING:
            return  # stopped before it started
        shared.state[self.worker] = RUNNING
        while self.is_active:
            since_s = clock()
            if not adaptive_wait.spin(has_command):
                shared.asleep[self.worker] = ASLEEP
                while True:
                    # The lock is a memory fence: the manager sees `asleep` before this reads `command`. Where it is no
                    # complete fence, the manager wakes this worker again: see `WorkerPool.wake_sleepers`.
                    with self.lock:
                        found = has_command()
                    if found:
                        break
                    if not sleep():
                        return
                shared.asleep[self.worker] = AWAKE
            adaptive_wait.record_wait(since_s)
            self._execute(memory[begin:end])
            if self.is_active and self._manager_waits():
                wake_manager()

    def _manager_waits(self) -> bool:
        """Whether the manager sleeps until fewer rows are busy than now."""
        shared = self.shared
        if not (wake_below := shared.wake_below[0]):
            return False
        return bool(np.count_nonzero(shared.command[shared.awaited]) < wake_below)

    def _execute(self, commands: bytes) -> None:
        """Carry out all steps, or else one reset. Steps come first, because resets may be ahead of time."""
        shared, first = self.shared, self.rows.start
        steps = [row for row, command in enumerate(commands, first) if command == STEP]
        if steps:
            actions = list(shared.action[first : self.rows.stop].copy())  # envs may keep them
            for row in steps:
                self._step(row, actions[row - first])
            return
        row, command = next(
            (row, command) for row, command in enumerate(commands, first) if command
        )
        if shared.delay_s[row]:
            time.sleep(shared.delay_s[row])
        has_begun = self._begin_episode(row, recreate=command == RECREATE)
        self._finish(row, 0 if has_begun else FAILED)

    def _step(self, row: int, action: Any) -> None:
        """Step an env. (For speed, `_write_activity` and `_finish` are inlined.)"""
        shared = self.shared
        self._activity_count = activity_count = self._activity_count + 1
        if self.is_active:
            activity = activity_count << ACTIVITY_BITS | (row + 1) << 2 | STEP
            shared.activity_view[self.worker] = activity
        try:
            obs, reward, terminated, truncated, _ = self._step_calls[row](action)
            if not (isinstance(reward, float) and -MAX_REWARD <= reward <= MAX_REWARD):
                reward = check_rewards([reward])[0]
            if terminated is not False or truncated is not False:
                terminated, truncated = check_ends(terminated, truncated)
            over = terminated or truncated
            target = shared.final_obs if over else shared.obs
            with self.lock:
                if not self.is_active:
                    return
                shared.reward_view[row] = reward
                if (
                    type(obs) is np.ndarray
                    and obs.dtype == self._obs_dtype
                    and obs.shape == self._array_shape
                ):
                    target[row] = obs
                else:
                    target[row] = check_observations([obs], self._obs_columns, self._obs_dtype)[0]
                if not over:
                    self._memory[self._flags_offset + row] = 0
                    shared.activity_view[self.worker] = activity_count << ACTIVITY_BITS
                    self._memory[self._command_offset + row] = IDLE
        except RAISED as error:
            self._write_error(row, "step", error)
            return self._finish(row, FAILED)
        if over:
            self._end_episode(
                row, (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
            )

    def _end_episode(self, row: int, flags: int) -> None:
        has_own_return = row in self._rows_with_own_return
        own_return = self._envs[row].unwrapped_return if has_own_return else np.nan
        self.shared.unwrapped_return[row] = own_return
        if self._auto_reset and not self._begin_episode(row):
            flags |= NEXT_RESET_FAILED
        self._finish(row, flags)

    def _begin_episode(self, row: int, recreate: bool = False) -> bool:
        """Begin an episode. Return whether that succeeded."""
        self._write_activity(row, RESET)
        shared = self.shared
        try:
            if recreate:
                shared.write_carry_over(row, "")  # the new env has nothing from earlier episodes
            if recreate or row not in self._envs:
                self._make(row, shared.read_carry_over(row))
            layers = self._carry_over.get(row)
            carried = "" if layers is None else layers.get()
            obs, _ = self._envs[row].reset(**shared.read_start(row).arguments())
            checked_obs = check_observation(obs, self._obs_columns, self._obs_dtype)
        except RAISED as error:
            self._write_error(row, "reset", error)
            return False
        with self.lock:
            if self.is_active:
                shared.obs[row] = checked_obs
                if carried:
                    shared.write_carry_over(row, carried)
        return True

    def _make(self, row: int, carried: str) -> None:
        """Make the env of a row, with what another env carried over."""
        old_env = self._envs.pop(row, None)
        if old_env is not None:
            try:
                old_env.close()
            except RAISED as error:  # expected of an env that has failed
                description = describe_failure("close", error)
                print(f"env {row} could not be closed: {description}", flush=True)
        env = self._envs[row] = self._make_env(row)
        self._step_calls[row] = env.step
        if self.shared.info:
            write = partial(self._write_info, row)
            self._step_calls[row] = recording_step(env.step, self._info_reader, write)
        if hasattr(env, "unwrapped_return"):
            self._rows_with_own_return.add(row)
        if (layers := carry_over_layers(env)) is not None:
            layers.set(carried)
            self._carry_over[row] = layers

    def _write_info(self, row: int, values: list[Array]) -> None:
        with self.lock:
            if self.is_active:
                for array, value in zip(self.shared.info.values(), values, strict=True):
                    array[row] = value

    def _write_activity(self, row: int, command: int) -> None:
        self._activity_count += 1
        if self.is_active:
            activity = self._activity_count << ACTIVITY_BITS | (row + 1) << 2 | command
            self.shared.activity_view[self.worker] = activity

    def _write_error(self, row: int, call: str, error: BaseException) -> None:
        text = f"{describe_failure(call, error)}\n{env_traceback(call, error)}"
        with self.lock:
            if self.is_active:
                self.shared.write_error(row, text)

    def _finish(self, row: int, flags: int) -> None:
        """Write the flags of a result, and at last clear the command: then the row belongs to the manager."""
        with self.lock:
            if self.is_active:
                self._memory[self._flags_offset + row] = flags
                self.shared.activity_view[self.worker] = self._activity_count << ACTIVITY_BITS
                self._memory[self._command_offset + row] = IDLE

    def close(self) -> None:
        """Close all envs, even if some raise."""
        for row, env in self._envs.items():
            try:
                env.close()
            except RAISED as error:
                self._write_error(row, "close", error)
                self._memory[self._flags_offset + row] = CLOSE_FAILED
        self._envs.clear()


def decode_activity(activity: int) -> tuple[int, int]:
    """The row and the command of a worker's `activity`; -1 and IDLE if it rests."""
    low_bits = activity & ((1 << ACTIVITY_BITS) - 1)
    return (low_bits >> 2) - 1, low_bits & 3
