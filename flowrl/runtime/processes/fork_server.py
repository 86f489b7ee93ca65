"""Loads once what the sites of a process group need, and forks a process for each of them.

It is run as `python -m flowrl.runtime.processes.fork_server FD`.

What there is to be is JSON on its standard input; how it goes is told on FD, in lines of JSON. It has one thread, so a
fork is safe; where what it loaded has started others, it says so and ends, and each site is started alone. A server
of one site forks nothing: it becomes that site.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from flowrl.runtime.processes.child_site import ChildSite

PR_SET_PDEATHSIG = 1
BY_ALL = ("flowrl.channels.sockets", "threadpoolctl")  # what each site would load on its way
TEXT_BYTES = 3000  # of an error: lines of a pipe stay whole up to 4096 bytes


def main() -> None:
    """What there is to be comes from whoever started this."""
    report, told = SupervisorPipe(int(sys.argv[1])), json.load(sys.stdin)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(told, report)


def serve(told: dict[str, Any], report: SupervisorPipe) -> None:
    """Fork the sites and tell how each ends; or be one of them."""
    die_with(told["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to deal with
    sys.path[:] = told["path"]
    with report.failure():
        child = ChildSite(told)
        for module in (*BY_ALL, *told["loads"]):
            importlib.import_module(module)
        name = divided(list(told["sites"]), report)
        if name is not None:
            faulthandler.enable(2)  # a crash says where
            child.begin(name)
    if name is not None:
        child.run()
        leave()


class SupervisorPipe:
    """What the process that started this one is told. Sites keep it open: its end is the end of all of them."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_inheritable(fd, False)

    def tell(self, *words: Any) -> None:
        """A line."""
        os.write(self._fd, json.dumps(words).encode() + b"\n")

    def close_in_forks(self) -> None:
        """What a node forks is no site."""
        os.register_at_fork(after_in_child=lambda: os.close(self._fd))

    @contextmanager
    def failure(self) -> Iterator[None]:
        """An error is told, and ends the process."""
        try:
            yield
        except BaseException as error:
            what = f"{type(error).__name__}: {error}"
            self.tell("failed", what[:TEXT_BYTES], traceback.format_exc()[-TEXT_BYTES:])
            sys.exit(1)


def divided(names: list[str], report: SupervisorPipe) -> str | None:
    """In each site its name; in the server, when all have ended, None."""
    if len(names) == 1:
        report.close_in_forks()
        return names[0]
    if threads() > 1:
        report.tell("threads")
        return None
    gc.freeze()  # what is not looked at stays shared
    server = os.getpid()
    sites = {}
    for name in names:
        pid = os.fork()
        if pid == 0:
            die_with(server)
            report.close_in_forks()
            np.random.seed()  # no two sites draw the same from what none should draw from
            return name
        sites[pid] = name
        report.tell("forked", name, pid)
    while sites:
        pid, status = os.wait()
        if pid in sites:
            report.tell("ended", sites.pop(pid), os.waitstatus_to_exitcode(status))
    return None


def threads() -> int:
    """How many threads this process has, also those that Python knows nothing of."""
    return len(os.listdir("/proc/self/task"))


def die_with(parent: int) -> None:
    """End when the parent does, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before we asked: that is the cause, and not what could be told here


def leave() -> None:
    """End now: taking all that torch has loaded apart again takes longer than what a short run does."""
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # closed, or nobody reads it any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
