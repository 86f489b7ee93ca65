"""Env managers whose envs live in worker processes: one that is deterministic, one that is not."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.core.node import UnsoundError
from flowrl.nodes.env_managers.worker_env_manager import WorkerEnvManager
from flowrl.nodes.env_managers.workers.adaptive_wait import MAX_SPIN_S
from flowrl.nodes.env_managers.workers.shared_rows import (
    SharedRows,
    create_shared_memory,
    shared_rows_for,
)
from flowrl.nodes.env_managers.workers.worker import ManagerWaker, ProcessWorker, Worker
from flowrl.nodes.env_managers.workers.worker_pool import usable_cores
from flowrl.nodes.envs.portable import to_portable
from flowrl.nodes.envs.steps import Steps


class SyncSubprocessEnvManager(WorkerEnvManager):
    """Envs in worker processes, stepped together: the same bits as in this process."""

    class Config(WorkerEnvManager.Config):
        pass

    def setup(self) -> None:
        """What workers are told must be data."""
        super().setup()
        if not hasattr(os, "fork"):
            raise UnsoundError(
                "worker processes need Linux or macOS", "use thread_env_manager", "type"
            )
        self._told = to_portable(self._part)
        self._memory: int | None = None

    def _new_board(self, rows: int, workers: int) -> SharedRows:
        self._memory = create_shared_memory()
        return shared_rows_for(self._obs_column, self._action_column, rows, workers, self._memory)

    def _hire(self, worker: int, answers: ManagerWaker) -> Worker:
        crew_rows = self._groups[worker]
        told = {
            "part": self._told,
            "worker": worker,
            "rows": self._board.rows,
            "workers": self._board.workers,
            "mine": [crew_rows.start, crew_rows.stop],
            "memory": self._memory,
            "count": self.config.count,
            "first": self._make_index(0),
            "auto": not self.config.pre_reset,
            "look_s": MAX_SPIN_S if self._board.workers <= usable_cores() else 0.0,
        }
        return ProcessWorker(told, answers)

    def close(self) -> None:
        """Send the workers home; a later reset starts others."""
        try:
            super().close()
        finally:
            memory, self._memory = self._memory, None
            if memory is not None:
                os.close(memory)


class AsyncSubprocessEnvManager(SyncSubprocessEnvManager):
    """Envs in worker processes, given as they become ready: a slow one holds back no other."""

    class Config(SyncSubprocessEnvManager.Config):
        wait_num: int = param(2, "envs to wait for at least, where so many are under way", ge=1)
        step_wait_timeout_s: float = param(
            0.01, "when so many are ready, wait so long for stragglers", ge=0
        )

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Always."""
        return "envs are given in the order in which they become ready"

    def _default_envs_per_worker(self) -> int:
        return 1

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs; without `ids`, of those that are ready, at least `least`."""
        if ids is None and self._all_in_time(max(least, self.config.wait_num)):
            return self._everyone, self._recv_all()
        return super().recv(ids, least)

    def _enough(self, least: int) -> int:
        return super()._enough(max(least, self.config.wait_num))

    def _ready(self, least: int) -> Array:
        ready = super()._ready(least)
        until_s = time.monotonic() + self.config.step_wait_timeout_s
        while len(ready) < len(self._sent) and time.monotonic() < until_s:
            stragglers = np.setdiff1d(list(self._sent), ready)
            self._team.wait(self._settling.source[stragglers], until_s=until_s)
            ready, _ = self._parted()
        return ready

    def _all_in_time(self, wanted: int) -> bool:
        """Whether all envs are under way and come to their results, all good, in time."""
        crew, count = self._team, self.config.count
        if len(self._sent) < count or self.config.pre_reset or self._settling.odd:
            return False
        crew.wait(busy=count - min(wanted, count))
        crew.wait(until_s=time.monotonic() + self.config.step_wait_timeout_s)
        return crew.all_idle() and self._results.all_sound()

    def _asked(self, ids: list[int]) -> Array | None:
        return None

    def _waiting(self) -> list[int]:
        n = self.spec().agents
        return [index for index in super()._waiting() if index // n not in self._sent]
