"""A futex waker wakes exactly the workers it is given, and misses none; without futexes, pipes do the same."""

from __future__ import annotations

import mmap
import platform
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from flowrl.nodes.env_managers.subprocess_env_managers import SyncSubprocessEnvManager
from flowrl.nodes.env_managers.workers import shared_rows, worker
from flowrl.nodes.env_managers.workers.futex_waker import (
    BITS,
    FUTEX_CALL_NUMBERS,
    WAIT_BITSET,
    FutexWaker,
    futex_is_available,
)
from flowrl.nodes.envs.gymnasium import Gymnasium
from tests.runs.threaded_runs import wait_for

pytestmark = pytest.mark.skipif(not futex_is_available(), reason="this system has no futex")


class SleepingThread(threading.Thread):
    """Sleeps again and again, and counts how often it woke."""

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        super().__init__(daemon=True)
        self.waker, self.number, self.wakeups, self.last = FutexWaker(memory, 64), number, 0, False
        self.start()

    def run(self) -> None:
        while not self.last:
            self.waker.sleep(self.number)
            self.wakeups += 1


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, 4096)


def test_only_the_named_workers_wake(memory: mmap.mmap) -> None:
    waker = FutexWaker(memory, 64)
    sleepers = [SleepingThread(memory, number) for number in (0, 3, BITS - 1)]
    for wakeups in range(1, 4):
        wait_for(lambda: all(map(is_asleep, sleepers)))
        waker.wake([0, BITS - 1])
        wait_for(partial(have_woken, sleepers, [wakeups, 0, wakeups]))
    for sleeper in sleepers:
        sleeper.last = True
    waker.wake([0, 3, BITS - 1])
    for sleeper in sleepers:
        sleeper.join(60)
        assert not sleeper.is_alive()


def sleep_returns(waker: FutexWaker, number: int, within_s: float = 10.0) -> bool:
    """Whether `sleep` returns within this time."""
    sleeper = threading.Thread(target=waker.sleep, args=[number], daemon=True)
    sleeper.start()
    sleeper.join(within_s)
    return not sleeper.is_alive()


def have_woken(sleepers: list[SleepingThread], times: list[int]) -> bool:
    return [sleeper.wakeups for sleeper in sleepers] == times


def is_asleep(sleeper: SleepingThread) -> bool:
    """Whether the thread waits in the kernel for the futex, and not for Python's lock."""
    with open(f"/proc/self/task/{sleeper.native_id}/syscall") as file:
        return file.read().split()[:3:2] == [
            str(FUTEX_CALL_NUMBERS[platform.machine()]),
            hex(WAIT_BITSET),
        ]


def test_a_worker_that_was_awake_when_woken_does_not_sleep_next_time(memory: mmap.mmap) -> None:
    waker, other = FutexWaker(memory, 64), FutexWaker(memory, 64)
    waker.wake([5])
    assert sleep_returns(other, 5)
    assert not sleep_returns(other, 5, within_s=0.05)
    waker.wake([5])  # for the thread that sleeps now


def test_waking_no_worker_changes_nothing(memory: mmap.mmap) -> None:
    before = memory[:]
    FutexWaker(memory, 64).wake([])
    assert memory[:] == before


def test_the_counter_wraps_around(memory: mmap.mmap) -> None:
    memory[64:68] = b"\xff\xff\xff\xff"
    waker, other = FutexWaker(memory, 64), FutexWaker(memory, 64)
    waker.wake([0])
    assert memory[64:68] == bytes(4)
    assert sleep_returns(other, 0)


def test_without_futexes_pipes_wake_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (shared_rows, worker):
        monkeypatch.setattr(module, "futex_is_available", lambda: False)
    actions: Any = np.zeros(4, np.int64)
    found = []
    for _ in range(2):
        envs = SyncSubprocessEnvManager(env=Gymnasium(id="CartPole-v1"), count=4, envs_per_worker=1)
        first = envs.reset()
        found.append([first, *(envs.advance(actions).obs for _ in range(20))])
        has_pipe = [w._pipe_waker is not None for w in envs.pool.workers]  # type: ignore[union-attr]
        envs.close()
        assert has_pipe == [len(found) == 1] * 4
        monkeypatch.undo()
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
