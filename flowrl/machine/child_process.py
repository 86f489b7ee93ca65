"""Starts child processes that run a Python module, configures and supervises them, and ends them with their children.

A child reads its configuration, a JSON object, from standard input. It leads a session of its own: the Ctrl-C
of a terminal reaches only the parent, and the parent can kill the child together with the processes that it
left behind.

A child ends with its parent, however the parent ends. The parent holds one end of a pipe, the lifeline, and the
kernel kills the child's process group when that end is closed. PR_SET_PDEATHSIG alone is not enough: its signal is
sent when the *thread* that started the child ends. A forked child shares the lifeline of its parent, and requests
that signal in addition.
"""

from __future__ import annotations

import ctypes
import faulthandler
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

STDERR = 2  # as the output of a child: both of its streams go to the parent's standard error
POLL_S = 0.005
PR_SET_PDEATHSIG = 1
F_SETSIG = 10  # Linux: the signal that `O_ASYNC` sends

_lifelines: set[int] = set()  # held by this process; its forks must not hold them


class ChildProcess:
    """The parent's handle of a child; owned by one thread."""

    def __init__(
        self,
        module: str,
        config: Mapping[str, Any],
        *,
        output: int | IO[bytes] = STDERR,
        fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `python -m module`. Its output goes to `output`, and it inherits `fds`."""
        child_end, self._lifeline = os.pipe()
        _lifelines.add(self._lifeline)
        self._is_killed = False
        try:
            text = json.dumps({**config, "lifeline": child_end, "path": sys.path})
            with _unnamed_file(text.encode()) as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module],
                    stdin=file,
                    stdout=output,
                    stderr=None if output == STDERR else output,
                    pass_fds=(child_end, *fds),
                    env=os.environ if environment is None else environment,
                    start_new_session=True,
                )
        except BaseException:
            self._cut_lifeline()
            raise
        finally:
            os.close(child_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs.

        The process is not reaped before `kill`, so no other process can get its id until then.
        """
        process = self._process
        if process.returncode is not None or not hasattr(os, "waitid"):
            return process.poll()
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            result = os.waitid(os.P_PID, process.pid, flags)
        except ChildProcessError:
            return process.poll()
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def wait(self, deadline: float) -> int | None:
        """Wait until the process ends or the deadline (of the monotonic clock) passes; return the exit status."""
        while (status := self.exit_status()) is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return status

    def kill(self) -> None:
        """Kill the process and all processes of its session, and reap it."""
        if self._is_killed:
            return
        self._is_killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._cut_lifeline()

    def _cut_lifeline(self) -> None:
        if self._lifeline in _lifelines:  # otherwise this is a fork of the parent
            _lifelines.remove(self._lifeline)
            os.close(self._lifeline)


def _unnamed_file(data: bytes) -> IO[bytes]:
    """Return an open file without a name. Unlike a pipe or a disk, it cannot be full."""
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("flowrl-config"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file


def _release_lifelines() -> None:
    """In a fork of a parent, release the lifelines, so that the children end with the parent and not with the fork."""
    for lifeline in _lifelines:
        os.close(lifeline)
    _lifelines.clear()


os.register_at_fork(after_in_child=_release_lifelines)


def exit_text(status: int) -> str:
    """Describe an exit status: `was killed by SIGKILL`, `ended with status 1`."""
    if status < 0:
        names = {s.value: s.name for s in signal.Signals}
        return f"was killed by {names.get(-status, f'signal {-status}')}"
    return f"ended with status {status}"


# The following functions are called in the child.


def begin_child() -> dict[str, Any]:
    """Return the configuration that the parent sent.

    From now on this process prints a traceback if it crashes, ends with its parent, ignores Ctrl-C, which the parent
    handles, imports modules from the parent's path, and has an empty standard input.
    """
    faulthandler.enable(2)
    config: dict[str, Any] = json.load(sys.stdin)
    _end_with_parent(config["lifeline"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:] = config["path"]
    return config


def _end_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group, including its children, when the parent's end of the lifeline closes."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())  # negative: a process group
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    else:  # other systems send SIGIO, which is ignored by default
        signal.signal(signal.SIGIO, lambda *_: os.killpg(0, signal.SIGKILL))
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    os.set_blocking(lifeline, False)
    with suppress(BlockingIOError):
        if os.read(lifeline, 1) == b"":
            os._exit(1)  # the parent ended before the signal was set


def end_with_forking_process(parent: int) -> None:
    """In a fork, end when the forking process ends. Only Linux offers this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the signal was set
