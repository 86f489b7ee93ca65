"""Child processes that need not start Python: one process has imported what they need, and forks them all.

`python -m tests.fork_pool FD MODULE…` is that process. Nothing else differs: a process that it forks reads its
configuration, is supervised, and is killed like one that `ChildProcess` starts. So hundreds of them take seconds.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest

from flowrl.machine import child_process
from flowrl.machine.numerics import THREAD_VARIABLES
from flowrl.machine.process_exit import exit_now
from flowrl.runtime.sites.fork_server import COMMON_MODULES

MODULES = (  # what env workers, and sites of toy nodes and of bundled graphs import
    *COMMON_MODULES,
    "torch",
    "flowrl.nodes.env_managers.workers.process",
    "flowrl.nodes.envs.gymnasium",
    "flowrl.nodes.learners.learner",
    "flowrl.runs.seed_process",
    "flowrl.runtime.sites.fork_server",
    "tests.nodes.toy_envs",
    "tests.runtime.service_nodes",
    "tests.sites.site_nodes",
    "tests.toys.toy_nodes",
)
MOST_BYTES, MOST_FDS = 1 << 17, 250  # of a message


class ForkPool:
    """The process as a test sees it. It is started, with more variables, when it is first needed."""

    def __init__(self, more_variables: Mapping[str, str] | None = None) -> None:
        self._more_variables = more_variables or {}
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        fd = self._theirs.fileno()
        command = [sys.executable, "-m", "tests.fork_pool", str(fd), *MODULES]
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), **self._more_variables}
        with self._theirs:
            # A test may be in a folder of its own, from which `tests` cannot be imported.
            folder = Path(__file__).parents[1]
            return subprocess.Popen(command, pass_fds=[fd], env=environment, cwd=folder)

    @contextmanager
    def replacing_popen(self) -> Iterator[None]:
        """Meanwhile the pool forks what `ChildProcess` would start."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(child_process, "subprocess", SimpleNamespace(Popen=self.popen))
            yield

    def popen(
        self,
        command: Sequence[str],
        *,
        stdin: IO[bytes],
        stdout: int | IO[bytes],
        stderr: int | IO[bytes] | None,
        pass_fds: Sequence[int],
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> ForkedProcess:
        """In the place of `subprocess.Popen`: fork the process that `python -m module` would be."""
        module = command[2]
        assert command == [sys.executable, "-m", module]
        assert start_new_session
        streams = [file if isinstance(file, int) else file.fileno() for file in (stdin, stdout)]
        streams.append(2 if stderr is None else streams[1])
        fds = dict(zip([0, 1, 2, *pass_fds], [*streams, *pass_fds], strict=True))
        request = {"module": module, "env": dict(env), "cwd": os.getcwd(), "fds": list(fds)}
        return ForkedProcess(self, self._ask(request, list(fds.values())))

    def exit_status(self, pid: int) -> int:
        """Reap a process that has ended; its exit status."""
        return self._ask({"reap": pid}, [])

    def _ask(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        with self._lock:
            self._process = self._process or self._start()
            status = self._process.poll()
            assert status is None, f"the fork pool has ended with status {status}"
            message = json.dumps(request).encode()
            assert len(message) <= MOST_BYTES
            assert len(fds) <= MOST_FDS
            socket.send_fds(self._socket, [message], fds)
            answer = self._socket.recv(64)
            assert answer, f"the fork pool has ended: it was asked to {request}"
            return int(answer)

    def close(self) -> None:
        """End the pool."""
        self._socket.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait(60)


class ForkedProcess:
    """A process of the pool, with the interface of `subprocess.Popen`."""

    def __init__(self, pool: ForkPool, pid: int) -> None:
        self._pool, self.pid = pool, pid
        self._pidfd = os.pidfd_open(pid)
        self._lock = Lock()  # one thread reaps it, as with `subprocess.Popen`
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self) -> int:
        status = self._wait(90_000)
        assert status is not None, f"process {self.pid} does not end"
        return status

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _wait(self, ms: int) -> int | None:
        with self._lock:
            if self.returncode is None:
                poll = select.poll()
                poll.register(self._pidfd, select.POLLIN)
                if poll.poll(ms):
                    self.returncode = self._pool.exit_status(self.pid)
                    os.close(self._pidfd)
            return self.returncode


def main() -> None:
    """Fork one process after the other until the test closes its socket. In a fork, be the process."""
    for module in sys.argv[2:]:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # pages that the collector does not touch stay shared
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        while True:
            message, fds, *_ = socket.recv_fds(requests, MOST_BYTES, MOST_FDS)
            if not message:
                return
            request = json.loads(message)
            if "reap" in request:
                _, status = os.waitpid(request["reap"], 0)
                requests.send(str(os.waitstatus_to_exitcode(status)).encode())
            elif os.fork():
                for fd in fds:
                    os.close(fd)
            else:
                os.setsid()
                requests.send(str(os.getpid()).encode())
                break
    begin_process(request, fds)
    module = sys.modules["__main__"] = importlib.import_module(request["module"])
    module.main()
    exit_now()


def begin_process(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Give a fork what a process that was started would have: descriptors, environment, folder, own random states."""
    above = max(request["fds"]) + 1
    moved = [fcntl(fd, F_DUPFD_CLOEXEC, above) for fd in fds]  # no number is needed twice
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, request["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    np.random.seed()


if __name__ == "__main__":
    main()
