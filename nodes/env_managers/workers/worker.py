"""A worker as its manager sees it: how it is started, woken, watched, given up and sent home."""

from __future__ import annotations

import fcntl
import os
import select
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
from flowrl.nodes.env_managers.workers.process import wake_reader
from flowrl.nodes.env_managers.workers.shared_rows import STOPPING, SharedRows, create_shared_memory
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop

STOP_TIMEOUT_S = 5.0
TAIL_BYTES = 4000


class PipeWaker:
    """A pipe to sleep at; ringing twice wakes once."""

    def __init__(self) -> None:
        self.ear, self.rope = os.pipe()
        os.set_blocking(self.rope, False)

    def wake(self) -> None:
        """Wake who sleeps."""
        wake_reader(self.rope)

    def close(self) -> None:
        """Both ends."""
        ends, self.ear, self.rope = (self.ear, self.rope), -1, -1
        for end in ends:  # once: a number may be somebody else's by then
            with suppress(OSError):
                os.close(end)


class ManagerWaker(PipeWaker):
    """The bell that workers ring for the manager, who sleeps with a deadline."""

    def __init__(self) -> None:
        super().__init__()
        os.set_blocking(self.ear, False)
        self._poll = select.poll()
        self._poll.register(self.ear, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Sleep until it rings, or so long."""
        if self._poll.poll(max(timeout_s * 1000, 0)):
            with suppress(BlockingIOError):
                os.read(self.ear, 4096)


class ProcessWorker:
    """A worker in a process of its own, and a session of its own: simulators that it starts go with it."""

    own_process = True

    def __init__(self, told: Mapping[str, Any], answers: PipeWaker) -> None:
        with ExitStack() as undo:  # where it cannot be started, nothing stays open
            self._bell = None if futex_is_available() else PipeWaker()
            if self._bell is not None:
                undo.callback(self._bell.close)
            self._output = undo.enter_context(_appended())
            fds = {"answer": answers.rope}
            if self._bell is not None:
                fds["bell"] = self._bell.ear
            self._process = _started(told, fds, self._output)
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def wake(self) -> None:
        """There is something to do. (Where there is a gong, that wakes several at once.)"""
        if self._bell is not None:
            self._bell.wake()

    def why_dead(self) -> str | None:
        """How its process ended, if it did."""
        code = self._process.exit_status()
        return None if code is None else describe_exit(code)

    def printed_bytes(self) -> int:
        """How much it has printed since that was last dropped."""
        return os.fstat(self._output.fileno()).st_size

    def tail(self) -> str:
        """The end of what it printed."""
        size = self.printed_bytes()
        return os.pread(self._output.fileno(), TAIL_BYTES, max(size - TAIL_BYTES, 0)).decode(
            errors="replace"
        )

    def drop_output(self) -> None:
        """Forget what it printed: a flood fills no disk."""
        os.ftruncate(self._output.fileno(), 0)

    def memory_bytes(self) -> int:
        """What it has resident, where the system says so."""
        with suppress(OSError), open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def give_up(self) -> None:
        """End it now, and all that it started."""
        self._process.kill()
        self._free()

    def leave(self, deadline: float) -> bool:
        """It was told to leave: wait for that, but not for ever; whether it did."""
        left = self._process.wait(max(deadline, time.monotonic() + 0.05)) is not None
        self.give_up()
        return left

    def _free(self) -> None:
        if self._bell is not None:
            self._bell.close()
        self._output.close()


def _appended() -> BinaryIO:
    """A file for what a worker prints."""
    output = os.fdopen(create_shared_memory(), "w+b")  # no full disk ends an env that prints
    flags = fcntl.fcntl(output, fcntl.F_GETFL)
    fcntl.fcntl(output, fcntl.F_SETFL, flags | os.O_APPEND)  # so that it can be cut
    return output


def _started(told: Mapping[str, Any], fds: Mapping[str, int], output: BinaryIO) -> ChildProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.setdefault("OMP_NUM_THREADS", "1")  # many workers share few cores
    return ChildProcess(
        "flowrl.nodes.env_managers.workers.process",
        {**told, **fds},
        output=output,
        fds=(told["memory"], *fds.values()),
        environment=environment,
    )


class ThreadWorker:
    """A worker in a thread. It cannot be ended, only left alone: then it writes nothing any more."""

    own_process = False

    def __init__(
        self, make: Callable[[], WorkerLoop], board: SharedRows, answers: PipeWaker
    ) -> None:
        self._board, self._server = board, make()
        self._more: SimpleQueue[None] = SimpleQueue()  # far cheaper to wait at than an `Event`
        self._failed: str | None = None
        self._answers = answers
        self._thread = threading.Thread(target=self._run, name="flowrl-env", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._server.serve(self._sleep, self._answers.wake, 0.0)
            if self._server.alive:
                self._server.close()
        except BaseException as error:  # an env may call sys.exit()
            self._failed = f"its thread ended by {type(error).__name__}: {error}"
            self._answers.wake()

    def _sleep(self) -> bool:
        self._more.get()
        leaving = self._board.state[self._server.worker] == STOPPING
        return self._server.alive and not leaving

    def wake(self) -> None:
        """There is something to do."""
        self._more.put(None)

    def why_dead(self) -> str | None:
        """How its thread ended, if it did."""
        if self._thread.is_alive():
            return None
        return self._failed or "its thread ended"

    def printed_bytes(self) -> int:
        """Threads print where the process does."""
        return 0

    def tail(self) -> str:
        """Nothing: see above."""
        return ""

    def drop_output(self) -> None:
        """Nothing: see above."""

    def memory_bytes(self) -> int:
        """Not to be told apart from the process's."""
        return 0

    def give_up(self) -> None:
        """Let it be: what it does from now on is seen by nobody."""
        with self._server.lock:
            self._server.alive = False
        self._more.put(None)

    def leave(self, deadline: float) -> bool:
        """It was told to leave: wait for that, but not for ever; whether it did."""
        self._thread.join(max(deadline - time.monotonic(), 0.05))
        left = not self._thread.is_alive()
        self.give_up()
        return left


Worker = ProcessWorker | ThreadWorker
