"""The memory that a manager shares with its workers: a row for each env, and some fields for each worker.

A row holds a command with its arguments (an action or a seed), and the result. Only one side writes to a row at a
time: the manager writes the arguments and then `command`; the worker writes the result and then clears `command`. So
no message is sent, and nothing is pickled.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.nodes.env_managers.env_history import MAX_CARRY_OVER_BYTES
from flowrl.nodes.env_managers.episode_start import MAX_OPTIONS_BYTES, EpisodeStart
from flowrl.nodes.env_managers.workers.futex_waker import FutexWaker, futex_is_available
from flowrl.nodes.envs.info import PREFIX
from flowrl.nodes.observations import ObsColumns

# Commands. RECREATE closes the env, makes another one and resets that.
IDLE, STEP, RESET, RECREATE = range(4)
# Flags of a result. NEXT_RESET_FAILED: the episode ended properly, but the reset of the next one failed. CLOSE_FAILED
# is written by a worker that stops: the env raised when it was closed.
TERMINATED, TRUNCATED, FAILED, NEXT_RESET_FAILED, CLOSE_FAILED = 1, 2, 4, 8, 16
ENDED = TERMINATED | TRUNCATED
# States of a worker.
STARTING, RUNNING, STOPPING = range(3)
AWAKE, ASLEEP = range(2)
RESULT_FIELDS = (
    "action",
    "flags",
    "reward",
    "unwrapped_return",
    "final_obs",
    "seed",
    "options",
    "obs",
)
MAX_ERROR_BYTES = 4096
CACHE_LINE_BYTES = 64  # fields begin at cache lines, because different sides write to them

Field = tuple[Any, int, Sequence[int]]  # dtype, number of rows or workers, shape of one


class SharedRows:
    """Arrays in shared memory. The first dimension is the row, or the worker."""

    command: Array
    flags: Array
    reward: Array
    unwrapped_return: Array  # of an ended episode, if the env knows it (else NaN)
    seed: Array  # of the episode to begin next
    options: Array  # of its reset, as text
    delay_s: Array  # before that
    action: Array
    obs: Array  # to act on
    final_obs: Array  # the last of an ended episode
    error: Array  # the text of what went wrong
    carried: Array  # the env's carry-over as text: see `env_history.py`
    state: Array
    asleep: Array
    activity: Array  # what the worker is doing: see `worker_loop.py`
    awaited: Array  # whether the manager waits for the row's result
    # If the manager sleeps: it wants to be woken when fewer awaited rows than this are busy. 0: it is awake.
    wake_below: Array

    def __init__(
        self,
        obs: tuple[Any, Sequence[int]],
        action: tuple[Any, Sequence[int]],
        rows: int,
        workers: int,
        memory_fd: int | None = None,
        info: Schema | None = None,
    ) -> None:
        """`obs` and `action` are dtype and shape. `memory_fd` is shared memory; None for threads.

        `info` are the listed entries of `info`.
        """
        fields: dict[str, Field] = {
            "command": (np.uint8, rows, ()),
            "flags": (np.uint8, rows, ()),
            "reward": (np.float64, rows, ()),
            "unwrapped_return": (np.float64, rows, ()),
            "seed": (np.int64, rows, ()),
            "options": (np.uint8, rows, (MAX_OPTIONS_BYTES,)),
            "delay_s": (np.float64, rows, ()),
            "action": (action[0], rows, action[1]),
            "obs": (obs[0], rows, obs[1]),
            "final_obs": (obs[0], rows, obs[1]),
            "error": (np.uint8, rows, (MAX_ERROR_BYTES,)),
            "carried": (np.uint8, rows, (MAX_CARRY_OVER_BYTES,)),
            "state": (np.uint8, workers, ()),
            "asleep": (np.uint8, workers, ()),
            "activity": (np.int64, workers, ()),
            "awaited": (np.bool_, rows, ()),
            "futex": (np.uint32, 1, ()),
            "wake_below": (np.int64, 1, ()),
        }
        self.info_columns = info or {}
        of_info = {PREFIX + name: c for name, c in self.info_columns.items()}
        fields |= {name: (np.dtype(c.dtype), rows, c.shape) for name, c in of_info.items()}
        offsets, size = _field_offsets(fields)
        self.memory = mmap.mmap(-1, size) if memory_fd is None else _map_memory(memory_fd, size)
        self.offsets, self._no_flags = offsets, bytes(rows)
        has_futex = memory_fd is not None and futex_is_available()
        self.futex_waker = FutexWaker(self.memory, offsets["futex"]) if has_futex else None
        self._flags_slice = slice(offsets["flags"], offsets["flags"] + rows)
        self.rows, self.workers = rows, workers
        for name, (dtype, count, shape) in fields.items():
            array = np.frombuffer(self.memory, dtype, count * _size(shape), offsets[name])
            if name != "futex":
                setattr(self, name, array.reshape(count, *shape))
        self.info: dict[str, Array] = {
            name: getattr(self, PREFIX + name) for name in self.info_columns
        }
        # The fields of a row that replaying its env overwrites.
        self.result_fields = (*RESULT_FIELDS, *of_info)
        # Views through which single numbers are written faster than through arrays.
        memory = memoryview(self.memory)
        self.reward_view = memory[offsets["reward"] :][: 8 * rows].cast("d")
        self.activity_view = memory[offsets["activity"] :][: 8 * workers].cast("q")

    def has_flags(self) -> bool:
        """Whether any row has flags. (Comparing bytes is far faster than numpy's `any`.)"""
        return self.memory[self._flags_slice] != self._no_flags

    def all_flags(self) -> bytes:
        """The flags of all rows."""
        return self.memory[self._flags_slice]

    def write_error(self, row: int, text: str) -> None:
        """Write what went wrong with an env. Of a long text, the beginning and the end are kept."""
        data = text.encode(errors="backslashreplace")  # file names need not be valid text
        if len(data) > MAX_ERROR_BYTES - 2:
            half = MAX_ERROR_BYTES // 2 - 4
            data = data[:half] + b"\n...\n" + data[-half:]
        _write_text(self.error[row], data)

    def read_error(self, row: int) -> str:
        """Read what went wrong with an env."""
        return _read_text(self.error[row])

    def write_carry_over(self, row: int, text: str) -> None:
        """Write what the env's episode has from earlier ones."""
        _write_text(self.carried[row], text.encode())

    def read_carry_over(self, row: int) -> str:
        """Read what the env's episode has from earlier ones. Usually that is nothing."""
        return _read_text(self.carried[row])

    def write_start(self, row: int, start: EpisodeStart) -> None:
        """Write how the row's next episode begins."""
        self.seed[row] = start.seed
        if start.options or self.options[row, 0]:
            _write_text(self.options[row], start.options.encode())

    def read_start(self, row: int) -> EpisodeStart:
        """Read how the row's next episode begins, or how its last one began."""
        return EpisodeStart(int(self.seed[row]), _read_text(self.options[row]))


def _write_text(field: Array, data: bytes) -> None:
    field[: len(data)] = np.frombuffer(data, np.uint8)
    field[len(data) :] = 0


def _read_text(field: Array) -> str:
    """Read a text; usually there is none."""
    return bytes(field).rstrip(b"\0").decode(errors="replace") if field[0] else ""


def shared_rows_for(
    obs: ObsColumns,
    action: Column,
    rows: int,
    workers: int,
    memory_fd: int | None = None,
    info: Schema | None = None,
) -> SharedRows:
    """The shared rows for these observations, actions and entries of `info`."""
    return SharedRows(
        (obs.dtype, obs.shape), (action.dtype, action.shape), rows, workers, memory_fd, info
    )


def create_shared_memory() -> int:
    """Create memory without a name, which vanishes with its last user; return its file descriptor."""
    if sys.platform == "linux":
        return os.memfd_create("flowrl-envs", 0)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _map_memory(memory_fd: int, size: int) -> mmap.mmap:
    if os.fstat(memory_fd).st_size < size:
        os.ftruncate(memory_fd, size)
    return mmap.mmap(memory_fd, size)


def _field_offsets(fields: Mapping[str, Field]) -> tuple[dict[str, int], int]:
    """The offset of each field, and the size of them all."""
    offsets, end = {}, 0
    for name, (dtype, count, shape) in fields.items():
        offsets[name] = end
        field_bytes = np.dtype(dtype).itemsize * count * _size(shape)
        end += -(-field_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
    return offsets, max(end, mmap.PAGESIZE)


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
