"""A worker process: `python -m flowrl.nodes.env_managers.workers.process`, told by JSON what it is."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import signal
import sys

from flowrl.nodes.env_managers.workers.shared_rows import STOPPING, shared_rows_for
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop
from flowrl.nodes.envs.portable import from_portable
from flowrl.nodes.envs.spec import env_columns

F_SETSIG = 10  # Linux: which signal `O_ASYNC` sends


def main() -> None:
    """Serve until the manager says otherwise, or is no more."""
    told = json.load(sys.stdin)
    _die_with(told["life"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the manager's to deal with
    faulthandler.enable()  # a segfault leaves a traceback where we print
    sys.path[:] = told["path"]
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


def _die_with(life: int) -> None:
    """End when the manager's process does, however it ends, whatever an env is busy with.

    The kernel tells us, and the simulators that envs started (our process group: hence the minus),
    that the other end of a pipe is gone by a signal. (That of `prctl` comes when the *thread* ends
    that started us.)
    """
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    if sys.platform == "linux":
        fcntl.fcntl(life, F_SETSIG, signal.SIGKILL)
    else:  # there SIGIO alone would be ignored
        signal.signal(signal.SIGIO, lambda *_: os.killpg(0, signal.SIGKILL))
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(life, False)
    try:
        gone = os.read(life, 1) == b""
    except BlockingIOError:
        gone = False
    if gone:
        sys.exit(1)  # it ended before we asked


if __name__ == "__main__":
    main()
