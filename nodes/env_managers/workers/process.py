"""A worker process: `python -m flowrl.nodes.env_managers.workers.process`, told by JSON what it is."""

from __future__ import annotations

import contextlib
import faulthandler
import os

from flowrl.machine.child_process import begin_child
from flowrl.nodes.env_managers.workers.shared_rows import STOPPING, shared_rows_for
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop
from flowrl.nodes.envs.portable import from_portable
from flowrl.nodes.envs.spec import env_columns


def main() -> None:
    """Serve until the manager says otherwise, or is no more."""
    told = begin_child()
    faulthandler.enable()  # a segfault leaves a traceback where we print
    part = from_portable(told["part"])
    observed, action = env_columns(part)
    board = shared_rows_for(observed, action, told["rows"], told["workers"], told["memory"])
    count, first = told["count"], told["first"]
    rows = range(*told["mine"])
    server = WorkerLoop(
        board,
        told["worker"],
        rows,
        lambda row: part.make(first + row % count),
        observed,
        told["auto"],
    )
    answer, worker, gong = told["answer"], told["worker"], board.gong

    def sleep() -> bool:
        if "bell" in told and not os.read(told["bell"], 4096):
            return False
        if gong is not None and "bell" not in told:
            gong.sleep(worker)
        return bool(board.state[worker] != STOPPING)

    server.serve(sleep, lambda: wake_reader(answer), told["look_s"])
    if board.state[worker] == STOPPING:
        server.close()


def wake_reader(bell: int) -> None:
    """Wake whoever reads there; if nobody does yet, a full pipe wakes as well."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(bell, b".")


if __name__ == "__main__":
    main()
