"""A worker as its manager sees it: how it is started, woken, watched and stopped."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any, BinaryIO

from flowrl.machine.child_process import ChildProcess
from flowrl.nodes.env_managers.env_error import describe_exit
from flowrl.nodes.env_managers.workers.futex_waker import futex_is_available
from flowrl.nodes.env_managers.workers.pipe_waker import PipeWaker
from flowrl.nodes.env_managers.workers.shared_rows import STOPPING, SharedRows, create_shared_memory
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop

STOP_TIMEOUT_S = 5.0
MIN_STOP_S = 0.05  # how long to wait for each worker, even after the deadline of all
OUTPUT_TAIL_BYTES = 4000


class ProcessWorker:
    """A worker in a process and session of its own, so that simulators that it starts end with it."""

    is_process = True

    def __init__(self, config: Mapping[str, Any], manager_waker: PipeWaker) -> None:
        """`config` is for `process.py`. The worker wakes its manager with `manager_waker`."""
        with ExitStack() as undo:  # if the worker cannot be started, nothing stays open
            self._pipe_waker = None if futex_is_available() else PipeWaker()
            fds = {"manager_fd": manager_waker.write_fd}
            if self._pipe_waker is not None:
                undo.callback(self._pipe_waker.close)
                fds["wake_fd"] = self._pipe_waker.read_fd
            self._output = undo.enter_context(_open_output())
            self._process = _start_process(config, fds, self._output)
            undo.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wake(self) -> None:
        """Wake the worker, if it has a pipe. (A futex wakes several workers at once.)"""
        if self._pipe_waker is not None:
            self._pipe_waker.wake()

    def failure(self) -> str | None:
        """How the process ended; None while it runs."""
        status = self._process.exit_status()
        return None if status is None else describe_exit(status)

    def output_bytes(self) -> int:
        """The size of its output since that was last dropped."""
        return os.fstat(self._output.fileno()).st_size

    def output_tail(self) -> str:
        """The end of its output."""
        begin = max(self.output_bytes() - OUTPUT_TAIL_BYTES, 0)
        return os.pread(self._output.fileno(), OUTPUT_TAIL_BYTES, begin).decode(errors="replace")

    def drop_output(self) -> None:
        """Drop its output, so that it cannot fill the memory."""
        os.ftruncate(self._output.fileno(), 0)

    def memory_bytes(self) -> int:
        """Its resident memory; 0 if the system does not say."""
        with suppress(OSError), open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def discard(self) -> None:
        """Kill the process and everything that it started."""
        self._process.kill()
        if self._pipe_waker is not None:
            self._pipe_waker.close()
        self._output.close()

    def join(self, deadline: float) -> bool:
        """Wait until the worker, which was stopped, has ended; discard it. Return whether it ended in time."""
        deadline = max(deadline, time.monotonic() + MIN_STOP_S)
        has_ended = self._process.wait(deadline) is not None
        self.discard()
        return has_ended


def _open_output() -> BinaryIO:
    """A file for the output of a worker. It is in memory, so a full disk does not end an env that prints."""
    output = os.fdopen(create_shared_memory(), "w+b")
    flags = fcntl.fcntl(output, fcntl.F_GETFL)
    fcntl.fcntl(output, fcntl.F_SETFL, flags | os.O_APPEND)  # so that it can be truncated
    return output


def _start_process(
    config: Mapping[str, Any], fds: Mapping[str, int], output: BinaryIO
) -> ChildProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.setdefault("OMP_NUM_THREADS", "1")  # many workers share few cores
    return ChildProcess(
        "flowrl.nodes.env_managers.workers.process",
        {**config, **fds},
        output=output,
        fds=(config["memory_fd"], *fds.values()),
        environment=environment,
    )


class ThreadWorker:
    """A worker in a thread. A thread that hangs cannot be ended, only abandoned: then it writes no results anymore."""

    is_process = False

    def __init__(
        self, make_loop: Callable[[], WorkerLoop], shared: SharedRows, manager_waker: PipeWaker
    ) -> None:
        self._shared, self._loop = shared, make_loop()
        self._wakeups: SimpleQueue[None] = SimpleQueue()  # far cheaper to wait for than an `Event`
        self._failure: str | None = None
        self._manager_waker = manager_waker
        self._thread = threading.Thread(target=self._run, name="flowrl-env", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run(self._sleep, self._manager_waker.wake, 0.0)
            if self._loop.is_active:
                self._loop.close()
        except BaseException as error:  # an env may call sys.exit()
            self._failure = f"its thread ended by {type(error).__name__}: {error}"
            self._manager_waker.wake()

    def _sleep(self) -> bool:
        self._wakeups.get()
        is_stopping = self._shared.state[self._loop.worker] == STOPPING
        return self._loop.is_active and not is_stopping

    def wake(self) -> None:
        self._wakeups.put(None)

    def failure(self) -> str | None:
        """How the thread ended; None while it runs."""
        if self._thread.is_alive():
            return None
        return self._failure or "its thread ended"

    def output_bytes(self) -> int:
        """0: threads print to the output of this process."""
        return 0

    def output_tail(self) -> str:
        """The empty text: threads print to the output of this process."""
        return ""

    def drop_output(self) -> None:
        """Do nothing: threads print to the output of this process."""

    def memory_bytes(self) -> int:
        """0: the memory of one thread is not known."""
        return 0

    def discard(self) -> None:
        """Leave the thread to itself, because threads cannot be ended: it stops after the call that it is in."""
        with self._loop.lock:
            self._loop.is_active = False
        self._wakeups.put(None)

    def join(self, deadline: float) -> bool:
        """Wait until the worker, which was stopped, has ended; discard it. Return whether it ended in time."""
        self._thread.join(max(deadline - time.monotonic(), MIN_STOP_S))
        has_ended = not self._thread.is_alive()
        self.discard()
        return has_ended


Worker = ProcessWorker | ThreadWorker
