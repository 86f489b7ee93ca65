"""When a worker wakes its manager."""

from __future__ import annotations

import pytest

from flowrl.core.batch import Column
from flowrl.nodes.env_managers.workers.shared_rows import RESET, STEP, shared_rows_for
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop
from tests.nodes.toy_envs import CountingEnv

ROWS = 4


def rows_that_wake(order: list[int], awaited: list[int], max_busy: int) -> list[int]:
    """Step rows in this order, while a manager sleeps until at most `max_busy` of the awaited ones are busy.

    Return the rows after which it is woken.
    """
    obs, action = Column("float32", (2,)), Column("int64")
    shared = shared_rows_for(obs, action, ROWS, 1)
    loop = WorkerLoop(shared, 0, range(ROWS), lambda row: CountingEnv(length=9), obs, False)
    for row in range(ROWS):
        shared.command[row] = RESET
        loop._execute(bytes(shared.command))
    shared.command[:] = STEP
    shared.awaited[awaited], shared.wake_below[0] = True, max_busy + 1
    found = []
    for row in order:
        loop._step(row, 0)
        assert not shared.flags[row]
        if loop._manager_waits():
            found.append(row)
    return found


@pytest.mark.parametrize(
    ("awaited", "max_busy", "woken_after"),
    [
        ([0, 1, 2, 3], 0, [3]),  # once, after the last
        ([0, 2], 0, [2, 3]),  # rows that are not awaited wake nobody
        ([0, 1, 2, 3], 2, [1, 2, 3]),
        ([3], 0, [3]),
    ],
)
def test_a_sleeping_manager_is_woken_when_few_enough_rows_are_busy(
    awaited: list[int], max_busy: int, woken_after: list[int]
) -> None:
    assert rows_that_wake([0, 1, 2, 3], awaited, max_busy) == woken_after


def test_a_manager_that_is_awake_is_not_woken() -> None:
    assert rows_that_wake([0, 1, 2, 3], [], -1) == []
