"""Env managers whose envs are in worker processes: synchronous and deterministic, or asynchronous."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.machine.cores import usable_cores
from flowrl.nodes.env_managers.worker_env_manager import WorkerEnvManager
from flowrl.nodes.env_managers.workers.adaptive_wait import MAX_SPIN_S
from flowrl.nodes.env_managers.workers.pipe_waker import ManagerWaker
from flowrl.nodes.env_managers.workers.shared_rows import (
    SharedRows,
    create_shared_memory,
    shared_rows_for,
)
from flowrl.nodes.env_managers.workers.worker import ProcessWorker, Worker
from flowrl.nodes.envs.portable import to_portable
from flowrl.nodes.envs.steps import Steps


class SyncSubprocessEnvManager(WorkerEnvManager):
    """Envs in worker processes, stepped together, with the same bits as in this process."""

    class Config(WorkerEnvManager.Config):
        pass

    def setup(self) -> None:
        """Encode the env part for the workers."""
        super().setup()
        if not hasattr(os, "fork"):
            raise UnsoundError(
                "worker processes need Linux or macOS", "use thread_env_manager", "type"
            )
        self._portable_part = to_portable(self._part)
        self._memory_fd: int | None = None

    def _make_shared_rows(self, rows: int, workers: int) -> SharedRows:
        self._memory_fd = create_shared_memory()
        columns = self._obs_column, self._action_column
        return shared_rows_for(*columns, rows, workers, self._memory_fd, self._info_columns)

    def _start_worker(self, worker: int, manager_waker: ManagerWaker) -> Worker:
        rows = self._groups[worker]
        config = {
            "part": self._portable_part,
            "worker": worker,
            "total_rows": self._shared.rows,
            "workers": self._shared.workers,
            "own_rows": [rows.start, rows.stop],
            "memory_fd": self._memory_fd,
            "info": {name: (c.dtype, c.shape) for name, c in self._info_columns.items()},
            "count": self.config.count,
            "first_make_index": self._make_index(0),
            "auto_reset": not self.config.pre_reset,
            "max_spin_s": MAX_SPIN_S if self._shared.workers <= usable_cores() else 0.0,
        }
        return ProcessWorker(config, manager_waker)

    def close(self) -> None:
        """Stop the workers. A later reset starts others."""
        try:
            super().close()
        finally:
            memory_fd, self._memory_fd = self._memory_fd, None
            if memory_fd is not None:
                os.close(memory_fd)


class AsyncSubprocessEnvManager(SyncSubprocessEnvManager):
    """Envs in worker processes, received as they become ready, so that a slow env delays no other."""

    class Config(SyncSubprocessEnvManager.Config):
        wait_num: int = param(
            2, "the number of envs to wait for at least, or all if fewer are pending", ge=1
        )
        step_wait_timeout_s: float = param(
            0.01, "how long to wait for further envs once `wait_num` are ready", ge=0
        )

    @classmethod
    def nondeterministic(cls, config: Any) -> str:
        """Why two runs always may differ: the order of envs depends on time."""
        return "envs are received in the order in which they become ready"

    def _default_envs_per_worker(self) -> int:
        return 1

    def recv(self, ids: Array | None = None, least: int = 1) -> tuple[Array, Steps]:
        """The steps of these envs. Without `ids`: of at least `least` and `wait_num` envs, whichever are ready."""
        if ids is None and self._all_succeed_in_time(max(least, self.config.wait_num)):
            return self._all_ids, self._recv_all()
        return super().recv(ids, least)

    def _least_of_sent(self, least: int) -> int:
        return super()._least_of_sent(max(least, self.config.wait_num))

    def _wait_for_ready(self, least: int) -> Array:
        ready = super()._wait_for_ready(least)
        deadline = time.monotonic() + self.config.step_wait_timeout_s
        while len(ready) < len(self._sent) and time.monotonic() < deadline:
            stragglers = np.setdiff1d(list(self._sent), ready)
            self.pool.wait(self._envs.obs_row[stragglers], deadline=deadline)
            ready, _ = self._split_sent()
        return ready

    def _all_succeed_in_time(self, least: int) -> bool:
        """Whether all envs are pending and get valid results in time; this takes the fastest path."""
        pool, count = self.pool, self.config.count
        if len(self._sent) < count or self.config.pre_reset or self._tracker.restarted:
            return False
        pool.wait(max_busy=count - min(least, count))
        pool.wait(deadline=time.monotonic() + self.config.step_wait_timeout_s)
        return pool.all_are_idle() and self._assembler.all_succeeded()

    def _ids_to_receive(self, ids: list[int]) -> Array | None:
        return None

    def _waiting_ids(self) -> list[int]:
        agents = self.spec().agents
        return [index for index in super()._waiting_ids() if index // agents not in self._sent]
