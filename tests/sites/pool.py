"""Servers of sites that need not start Python: one process has loaded what they load, and forks them all.

`python -m tests.sites.pool FD` is that process. Nothing else differs: a server forked here reads its graph, forks its
sites, is watched and is ended like any other. So hundreds of runs in processes take a minute.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import pytest

from flowrl.machine.child_process import end_with_forking_process
from flowrl.machine.numerics import THREAD_VARIABLES
from flowrl.runtime.sites import site_processes
from flowrl.runtime.sites.fork_server import COMMON_MODULES, ServerReport, exit_now, serve

FORK, STATUS = b"fork", b"status "
NODES = ("tests.toys.toy_nodes", "tests.sites.site_nodes", "tests.runtime.link_nodes")


class Pool:
    """The process as a test sees it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.sites.pool", str(theirs.fileno())]
        alone = dict.fromkeys(THREAD_VARIABLES, "1")
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env={**os.environ, **alone}
        )
        theirs.close()

    def fork(
        self,
        module: str,
        config: Mapping[str, Any],
        *,
        output: int | IO[bytes],
        fds: Sequence[int],
        environment: Mapping[str, str],
    ) -> ForkedServer:
        """In the place of `ChildProcess`: a fork server."""
        report, *others = fds
        assert module == "flowrl.runtime.sites.fork_server"
        assert not others, "the pool cannot start sites that other machines reach"
        words = {**config, "parent": self._process.pid, "path": sys.path}
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(words).encode())
            file.seek(0)
            printed = output if isinstance(output, int) else output.fileno()
            socket.send_fds(self._socket, [FORK], [file.fileno(), report, printed])
            return ForkedServer(self, int(self._socket.recv(64)))

    def status(self, pid: int) -> int:
        """How a server that has ended did."""
        self._socket.send(STATUS + str(pid).encode())
        return int(self._socket.recv(64))

    def close(self) -> None:
        """End the pool, which ends all that it has forked."""
        self._socket.close()
        self._process.wait(20)


class ForkedServer:
    """A server that the pool has forked, with the interface of `ChildProcess`."""

    def __init__(self, pool: Pool, pid: int) -> None:
        self._pool, self.pid = pool, pid
        self._fd = os.pidfd_open(pid)
        self._status: int | None = None

    def exit_status(self) -> int | None:
        """Its status, if it has ended."""
        return self._status_within(0.0)

    def wait(self, deadline: float) -> int | None:
        """Its status, if it ends until then."""
        return self._status_within(max(deadline - time.monotonic(), 0.0))

    def kill(self) -> None:
        """Kill its session."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        assert self._status_within(30.0) is not None, f"process {self.pid} does not end"

    def _status_within(self, s: float) -> int | None:
        if self._status is None and select.select([self._fd], [], [], s)[0]:
            self._status = self._pool.status(self.pid)
            os.close(self._fd)
        return self._status


@contextmanager
def pooled() -> Iterator[Pool]:
    """Meanwhile all site processes come from one pool."""
    pool = Pool()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_processes, "ChildProcess", pool.fork)
        try:
            yield pool
        finally:
            pool.close()


def main() -> None:
    """Fork whatever is asked for, one after the other, until nobody asks any more."""
    for module in (*COMMON_MODULES, "flowrl.runtime.sites.child_site", *NODES):
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        while True:
            word, fds, *_ = socket.recv_fds(asked, 64, 3)
            if not word:
                return
            if word == FORK:
                pid = os.fork()
                if pid == 0:
                    asked.close()
                    break
                for fd in fds:
                    os.close(fd)
                asked.send(str(pid).encode())
            else:
                _, status = os.waitpid(int(word.removeprefix(STATUS)), 0)
                asked.send(str(os.waitstatus_to_exitcode(status)).encode())
    _be_a_server(*fds)


def _be_a_server(config: int, report: int, printed: int) -> None:
    os.setsid()
    os.dup2(printed, 1)
    with os.fdopen(config) as file:
        words = json.load(file)
    end_with_forking_process(words["parent"])
    sys.path[:] = words["path"]
    try:
        serve(words, ServerReport(report))
    finally:
        exit_now()


if __name__ == "__main__":
    main()
