"""A worker's side of the board: whom it wakes, and when."""

from __future__ import annotations

import pytest

from flowrl.core.batch import Column
from flowrl.nodes.env_managers.workers.shared_rows import RESET, STEP, shared_rows_for
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop
from tests.nodes.toy_envs import Counting

ROWS = 4


def rings(order: list[int], awaited: list[int], busy: int) -> list[int]:
    """A manager sleeps until at most `busy` of the rows `awaited` are: after which rows it is woken."""
    obs, action = Column("float32", (2,)), Column("int64")
    board = shared_rows_for(obs, action, ROWS, 1)
    server = WorkerLoop(board, 0, range(ROWS), lambda row: Counting(length=9), obs, False)
    for row in range(ROWS):
        board.todo[row] = RESET
        server._work(bytes(board.todo))
    board.todo[:] = STEP
    board.awaited[awaited], board.waiting[0] = True, busy + 1
    found = []
    for row in order:
        server._step(row, 0)
        assert not board.flags[row]
        if server._waited_for():
            found.append(row)
    return found


@pytest.mark.parametrize(
    ("awaited", "busy", "woken_after"),
    [
        ([0, 1, 2, 3], 0, [3]),  # all: once, by the last
        ([0, 2], 0, [2, 3]),  # what nobody waits for wakes nobody
        ([0, 1, 2, 3], 2, [1, 2, 3]),
        ([3], 0, [3]),
    ],
)
def test_a_manager_is_woken_when_few_enough_are_busy(
    awaited: list[int], busy: int, woken_after: list[int]
) -> None:
    assert rings([0, 1, 2, 3], awaited, busy) == woken_after


def test_a_manager_that_is_awake_is_not_woken() -> None:
    assert rings([0, 1, 2, 3], [], -1) == []
