"""Child processes that run a Python module: start, configuration, supervision, and the end of all that they started.

A child reads its configuration, a JSON object, from standard input. It leads a session of its own: the Ctrl-C
of a terminal reaches only the parent, and the parent can kill the child together with the processes that it
left behind.

A child ends when its parent does, however that ends. The parent holds one end of a pipe, the lifeline, and the
kernel kills the child's process group when that end is closed. PR_SET_PDEATHSIG alone would not do: its signal
is sent when the *thread* ends that started the child. A forked child shares the lifeline of its parent, and
asks for that signal in addition.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

STDERR = 2  # as the output of a child: both of its streams go where the parent's errors go
POLL_S = 0.005
PR_SET_PDEATHSIG = 1
F_SETSIG = 10  # Linux: the signal that `O_ASYNC` sends

_lifelines: set[int] = set()  # the ends that this process holds; its forks must not hold them


class ChildProcess:
    """A child as its parent sees it; owned by one thread."""

    def __init__(
        self,
        module: str,
        config: Mapping[str, Any],
        *,
        output: int | IO[bytes] = STDERR,
        fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m module`. `output` takes what it prints; it inherits `fds`."""
        end, self._lifeline = os.pipe()
        _lifelines.add(self._lifeline)
        self._is_over = False
        try:
            words = json.dumps({**config, "lifeline": end, "path": sys.path})
            with _file_of(words.encode()) as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module],
                    stdin=file,
                    stdout=output,
                    stderr=None if output == STDERR else output,
                    pass_fds=(end, *fds),
                    env=os.environ if environment is None else environment,
                    start_new_session=True,
                )
        except BaseException:
            self._cut_lifeline()
            raise
        finally:
            os.close(end)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """Its exit status (of a signal: its negative number), or None while it runs.

        The process is not reaped before `kill`: until then nobody else gets its number.
        """
        process = self._process
        if process.returncode is not None or not hasattr(os, "waitid"):
            return process.poll()
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            found = os.waitid(os.P_PID, process.pid, flags)
        except ChildProcessError:
            return process.poll()
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def wait(self, deadline: float) -> int | None:
        """Wait until it ends, or until the deadline (of the monotonic clock); its exit status."""
        while (status := self.exit_status()) is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return status

    def kill(self) -> None:
        """Kill its session, that is the process and what it started, as far as that is still there; reap it."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._cut_lifeline()

    def _cut_lifeline(self) -> None:
        if self._lifeline in _lifelines:  # else this is a fork of the parent
            _lifelines.remove(self._lifeline)
            os.close(self._lifeline)


def _file_of(data: bytes) -> IO[bytes]:
    """An open file without a name: unlike a pipe it is never full, and unlike a disk neither."""
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("flowrl-config"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file


def _release_lifelines() -> None:
    """In a fork of a parent: the children must end with their parent, and not wait for its forks."""
    for lifeline in _lifelines:
        os.close(lifeline)
    _lifelines.clear()


os.register_at_fork(after_in_child=_release_lifelines)


def exit_text(status: int) -> str:
    """An exit status in words: `was killed by SIGKILL`, `ended with status 1`."""
    if status < 0:
        names = {s.value: s.name for s in signal.Signals}
        return f"was killed by {names.get(-status, f'signal {-status}')}"
    return f"ended with status {status}"


# in the child


def begin_child() -> dict[str, Any]:
    """The configuration that the parent gave. From now on this process ends with its parent, ignores Ctrl-C (which
    is the parent's to handle), imports modules from where the parent does, and has an empty standard input."""
    config: dict[str, Any] = json.load(sys.stdin)
    _end_with_parent(config["lifeline"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:] = config["path"]
    return config


def _end_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group, simulators that it started included, when the lifeline is cut."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())  # the minus: the group
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    else:  # there SIGIO alone would be ignored
        signal.signal(signal.SIGIO, lambda *_: os.killpg(0, signal.SIGKILL))
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(lifeline, False)
    with suppress(BlockingIOError):
        if os.read(lifeline, 1) == b"":
            os._exit(
                1
            )  # the parent ended before this: that is the cause, not what could be said here


def end_with_forking_process(parent: int) -> None:
    """In a fork: end when the process that forked it ends, however it does (where the system offers that: Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before this
