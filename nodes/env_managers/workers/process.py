"""The program of a worker process: `python -m flowrl.nodes.env_managers.workers.process`, configured by JSON."""

from __future__ import annotations

import os

from flowrl.core.batch import Column
from flowrl.machine.child_process import begin_child
from flowrl.machine.process_exit import exit_now
from flowrl.nodes.env_managers.workers.pipe_waker import write_wakeup
from flowrl.nodes.env_managers.workers.shared_rows import STOPPING, shared_rows_for
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop
from flowrl.nodes.envs.portable import from_portable
from flowrl.nodes.envs.spec import env_columns


def main() -> None:
    """Run the worker until the manager stops it or ends."""
    config = begin_child()
    part = from_portable(config["part"])
    obs, action = env_columns(part)
    info = {name: Column(dtype, tuple(shape)) for name, (dtype, shape) in config["info"].items()}
    shared = shared_rows_for(
        obs, action, config["total_rows"], config["workers"], config["memory_fd"], info
    )
    worker, count, first = config["worker"], config["count"], config["first_make_index"]
    loop = WorkerLoop(
        shared,
        worker,
        range(*config["own_rows"]),
        lambda row: part.make(first + row % count),
        obs,
        config["auto_reset"],
    )
    wake_fd = config.get("wake_fd")  # only where there is no futex

    def sleep() -> bool:
        if wake_fd is not None:
            if not os.read(wake_fd, 4096):
                return False
        elif shared.futex_waker is not None:
            shared.futex_waker.sleep(worker)
        return bool(shared.state[worker] != STOPPING)

    manager_fd = config["manager_fd"]
    loop.run(sleep, lambda: write_wakeup(manager_fd), config["max_spin_s"])
    if shared.state[worker] == STOPPING:
        loop.close()


if __name__ == "__main__":
    main()
    exit_now()
