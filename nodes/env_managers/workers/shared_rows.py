"""What a manager and its workers share: one row for each env, in memory that both see.

A row holds an order (what to do, with which action or seed) and the result. Only one side writes to
it at a time: the manager writes the order, then `todo`; the worker writes the result, then clears
`todo`. No message is sent, nothing is pickled.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.env_managers.carry_over import MAX_BYTES as CARRIED_BYTES
from flowrl.nodes.env_managers.workers.futex_waker import FutexWaker, futex_is_available
from flowrl.nodes.observations import ObsColumns

IDLE, STEP, RESET, RECREATE = range(4)  # orders; RENEW is: close the env, make it again, begin
TERMINATED, TRUNCATED, FAILED, NEXT_RESET_FAILED = 1, 2, 4, 8  # flags of a result
# ^ FAILED_AFTER: the episode ended as it should, but the next could not begin
CLOSE_FAILED = 16  # told by a worker that left: the env raised when it was closed
ENDED = TERMINATED | TRUNCATED
STARTING, RUNNING, STOPPING = range(3)  # states of a worker
AWAKE, ASLEEP = range(2)
NOTHING = 0  # in `doing`
TEXT_BYTES = 4096
LINE = 64  # bytes of a cache line: what different sides write lies apart


class SharedRows:
    """Rows for `rows` envs, and a few words for each of `workers` workers."""

    def __init__(
        self,
        obs: tuple[Any, Sequence[int]],
        action: tuple[Any, Sequence[int]],
        rows: int,
        workers: int,
        memory: int | None = None,
    ) -> None:
        """`obs` and `action` are dtype and shape; `memory` is the descriptor of what is shared:
        None for threads, which share all anyway."""
        fields = {
            "todo": (np.uint8, rows, ()),
            "flags": (np.uint8, rows, ()),
            "reward": (np.float64, rows, ()),
            "total": (np.float64, rows, ()),  # of an ended episode, where the env knows it better
            "seed": (np.int64, rows, ()),  # of the episode to begin next
            "pause": (np.float64, rows, ()),  # seconds to wait before that
            "action": (action[0], rows, action[1]),
            "obs": (obs[0], rows, obs[1]),  # to act on
            "last": (obs[0], rows, obs[1]),  # the last of an episode that ended
            "text": (np.uint8, rows, (TEXT_BYTES,)),  # what went wrong
            "carried": (np.uint8, rows, (CARRIED_BYTES,)),  # of episodes before: see `carried.py`
            "state": (np.uint8, workers, ()),
            "rest": (np.uint8, workers, ()),  # whether the worker sleeps
            "doing": (np.int64, workers, ()),  # counts what it does: see `worker.Server`
            "awaited": (np.bool_, rows, ()),  # whether the manager sleeps for the row's result
            "gong": (np.uint32, 1, ()),  # wakes workers that are processes
            "waiting": (np.int64, 1, ()),  # 0: it is awake; n: until fewer than n such are busy
        }
        places, size = _places(fields)
        self.memory = mmap.mmap(-1, size) if memory is None else _mapped(memory, size)
        self.places, self._no_flags = places, bytes(rows)
        shared = memory is not None and futex_is_available()
        self.gong = FutexWaker(self.memory, places["gong"]) if shared else None
        self._flags = slice(places["flags"], places["flags"] + rows)
        self.rows, self.workers = rows, workers
        for name, (dtype, count, shape) in fields.items():
            array = np.frombuffer(self.memory, dtype, count * _size(shape), places[name])
            if name != "gong":
                setattr(self, name, array.reshape(count, *shape))
        self._views = {n: memoryview(self.memory)[places[n] :] for n in ("reward", "doing")}
        self.set_reward = self._views["reward"][: 8 * rows].cast("d")
        self.set_doing = self._views["doing"][: 8 * workers].cast("q")

    todo: Array
    flags: Array
    reward: Array
    total: Array
    seed: Array
    pause: Array
    action: Array
    obs: Array
    last: Array
    text: Array
    carried: Array
    state: Array
    rest: Array
    doing: Array
    awaited: Array
    waiting: Array

    def any_flags(self) -> bool:
        """Whether any row has flags. (Of bytes, this is far faster than numpy's `any`.)"""
        return self.memory[self._flags] != self._no_flags

    def all_flags(self) -> bytes:
        """Those of each row."""
        return self.memory[self._flags]

    def write(self, row: int, text: str) -> None:
        """What went wrong with an env; of a long text the beginning and the end."""
        data = text.encode(errors="backslashreplace")  # names of files need not be text
        if len(data) > TEXT_BYTES - 2:
            half = TEXT_BYTES // 2 - 4
            data = data[:half] + b"\n...\n" + data[-half:]
        _put(self.text[row], data)

    def read(self, row: int) -> str:
        """What went wrong with it."""
        return bytes(self.text[row]).rstrip(b"\0").decode(errors="replace")

    def carry(self, row: int, text: str) -> None:
        """What the env's episode has of those before."""
        _put(self.carried[row], text.encode())

    def carries(self, row: int) -> str:
        """The same; mostly nothing, which is soon seen."""
        if not self.carried[row, 0]:
            return ""
        return bytes(self.carried[row]).rstrip(b"\0").decode()


def _put(place: Array, data: bytes) -> None:
    place[: len(data)] = np.frombuffer(data, np.uint8)
    place[len(data) :] = 0


def shared_rows_for(
    observed: ObsColumns, action: Column, rows: int, workers: int, memory: int | None = None
) -> SharedRows:
    """The board for such observations and actions."""
    return SharedRows(
        (observed.dtype, observed.shape), (action.dtype, action.shape), rows, workers, memory
    )


def create_shared_memory() -> int:
    """A descriptor of memory without a name: nothing stays behind, however its users end."""
    if sys.platform == "linux":
        return os.memfd_create("flowrl-envs", 0)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _mapped(memory: int, size: int) -> mmap.mmap:
    if os.fstat(memory).st_size < size:
        os.ftruncate(memory, size)
    return mmap.mmap(memory, size)


def _places(fields: dict[str, Any]) -> tuple[dict[str, int], int]:
    places, at = {}, 0
    for name, (dtype, count, shape) in fields.items():
        places[name] = at
        at += -(-(np.dtype(dtype).itemsize * count * _size(shape)) // LINE) * LINE
    return places, max(at, mmap.PAGESIZE)


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
