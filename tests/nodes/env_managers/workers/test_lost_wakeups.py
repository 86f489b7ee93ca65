"""A wake-up of a worker may be lost: it is repeated while the manager waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from flowrl.nodes.env_managers.workers.shared_rows import ASLEEP
from flowrl.nodes.env_managers.workers.worker_pool import WorkerPool
from tests.nodes.env_managers.manager_kinds import open_manager


@pytest.fixture
def lose_wakeups(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Lose the wake-ups that are counted down in this list of the workers that were not woken."""
    lost: list[list[int]] = []
    wake = WorkerPool._wake

    def lose_first(pool: WorkerPool, workers: Iterable[int]) -> None:
        named = list(workers)
        if named and len(lost) < 2:
            lost.append(named)
        else:
            wake(pool, named)

    monkeypatch.setattr(WorkerPool, "_wake", lose_first)
    return lost


def wait_until_all_sleep(envs: Any) -> None:
    deadline = time.monotonic() + 90
    while not (envs.pool.shared.asleep == ASLEEP).all():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync, one env per worker", "thread", "async, received by id"])
def test_a_worker_whose_wake_up_was_lost_is_woken_again(
    kind: str, lose_wakeups: list[list[int]]
) -> None:
    lose_wakeups.extend([[], []])  # none is lost while the workers start
    with open_manager(kind) as envs:
        envs.reset()
        wait_until_all_sleep(envs)
        lose_wakeups.clear()
        stepping = threading.Thread(target=envs.advance, args=(np.zeros(3, np.int64),), daemon=True)
        stepping.start()
        stepping.join(30)
        assert not stepping.is_alive()
        assert len(lose_wakeups) == 2
