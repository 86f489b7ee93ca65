"""A gong wakes those who are meant, all at once, and no stroke is missed; without one, bells do the same."""

from __future__ import annotations

import mmap
import platform
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from flowrl.nodes.env_managers.subprocess_env_managers import SyncSubprocessEnvManager
from flowrl.nodes.env_managers.workers import board
from flowrl.nodes.env_managers.workers import worker as workers
from flowrl.nodes.env_managers.workers.gong import BITS, NUMBERS, WAIT_BITSET, Gong, can_sleep_here
from flowrl.nodes.envs.gymnasium import Gymnasium
from tests.runs.going import until

pytestmark = pytest.mark.skipif(not can_sleep_here(), reason="this system has no futex")


class Sleeper(threading.Thread):
    """Sleeps again and again, and counts how often it woke."""

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        super().__init__(daemon=True)
        self.gong, self.number, self.woken, self.last = Gong(memory, 64), number, 0, False
        self.start()

    def run(self) -> None:
        while not self.last:
            self.gong.sleep(self.number)
            self.woken += 1


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, 4096)


def test_those_who_are_meant_wake_and_nobody_else(memory: mmap.mmap) -> None:
    gong = Gong(memory, 64)
    sleepers = [Sleeper(memory, number) for number in (0, 3, BITS - 1)]
    for strokes in range(1, 4):
        until(lambda: all(map(asleep, sleepers)))
        gong.strike([0, BITS - 1])
        until(partial(woken, sleepers, [strokes, 0, strokes]))
    for sleeper in sleepers:
        sleeper.last = True
    gong.strike([0, 3, BITS - 1])
    for sleeper in sleepers:
        sleeper.join(10)
        assert not sleeper.is_alive()


def comes_back(gong: Gong, number: int, within_s: float = 10.0) -> bool:
    """Whether a sleep ends by then."""
    sleeper = threading.Thread(target=gong.sleep, args=[number], daemon=True)
    sleeper.start()
    sleeper.join(within_s)
    return not sleeper.is_alive()


def woken(sleepers: list[Sleeper], times: list[int]) -> bool:
    return [sleeper.woken for sleeper in sleepers] == times


def asleep(sleeper: Sleeper) -> bool:
    """Whether it waits in the kernel for a stroke (and not for Python's lock)."""
    with open(f"/proc/self/task/{sleeper.native_id}/syscall") as file:
        return file.read().split()[:3:2] == [str(NUMBERS[platform.machine()]), hex(WAIT_BITSET)]


def test_who_is_awake_when_it_is_struck_does_not_sleep_the_next_time(memory: mmap.mmap) -> None:
    gong, other = Gong(memory, 64), Gong(memory, 64)
    gong.strike([5])
    assert comes_back(other, 5)
    assert not comes_back(other, 5, within_s=0.05)
    gong.strike([5])  # for the thread that sleeps now


def test_to_strike_for_nobody_changes_nothing(memory: mmap.mmap) -> None:
    before = memory[:]
    Gong(memory, 64).strike([])
    assert memory[:] == before


def test_a_word_that_has_counted_to_its_end_begins_anew(memory: mmap.mmap) -> None:
    memory[64:68] = b"\xff\xff\xff\xff"
    gong, other = Gong(memory, 64), Gong(memory, 64)
    gong.strike([0])
    assert memory[64:68] == bytes(4)
    assert comes_back(other, 0)


def test_where_there_is_no_gong_bells_wake_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (board, workers):
        monkeypatch.setattr(module, "can_sleep_here", lambda: False)
    actions: Any = np.zeros(4, np.int64)
    found = []
    for _ in range(2):
        envs = SyncSubprocessEnvManager(env=Gymnasium(id="CartPole-v1"), count=4, envs_per_worker=1)
        begun = envs.reset()
        found.append([begun, *(envs.advance(actions).obs for _ in range(20))])
        has_bell = [worker._bell is not None for worker in envs._crew.workers]  # type: ignore[union-attr]
        envs.close()
        assert has_bell == [len(found) == 1] * 4
        monkeypatch.undo()
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
