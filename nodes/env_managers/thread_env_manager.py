"""The env manager whose envs are in threads, for envs that wait: for instance for simulators elsewhere."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.core.node import Load
from flowrl.nodes.env_managers.worker_env_manager import WorkerEnvManager
from flowrl.nodes.env_managers.workers.pipe_waker import ManagerWaker
from flowrl.nodes.env_managers.workers.shared_rows import SharedRows, shared_rows_for
from flowrl.nodes.env_managers.workers.worker import ThreadWorker, Worker
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop


class ThreadEnvManager(WorkerEnvManager):
    """Envs in threads of this process, stepped together, with the same bits as one after another.

    This is useful if steps wait for something or compute without Python's global lock. An env that hangs is left in
    its thread, and recreated in another one.
    """

    max_spin_s = 0.0  # polling would hold the global lock, which the threads need

    class Config(WorkerEnvManager.Config):
        max_worker_bytes: None = param(None, "none: the memory of one thread is not known")

    @classmethod
    def remedy(cls, config: Any, load: Load) -> str:
        """Worker processes, which have a lock each."""
        return (
            "its envs are threads of this process, of which one at a time executes Python; if they compute, try "
            "`sync_subprocess_env_manager`"
        )

    def _default_envs_per_worker(self) -> int:
        return 1

    def _make_shared_rows(self, rows: int, workers: int) -> SharedRows:
        columns = self._obs_column, self._action_column
        return shared_rows_for(*columns, rows, workers, info=self._info_columns)

    def _start_worker(self, worker: int, manager_waker: ManagerWaker) -> Worker:
        count = self.config.count

        def make_loop() -> WorkerLoop:
            return WorkerLoop(
                self._shared,
                worker,
                self._groups[worker],
                lambda row: self._part.make(self._make_index(row % count)),
                self._obs_column,
                auto_reset=not self.config.pre_reset,
            )

        return ThreadWorker(make_loop, self._shared, manager_waker)
