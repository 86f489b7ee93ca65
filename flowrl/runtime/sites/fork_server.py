"""The process that imports the modules of several sites once, and forks one process for each site.

Its configuration is that of `child_site`, with two more keys: `imports` (modules) and `report` (a descriptor). It
reports by lines of JSON to the process that started it (`ServerReport`). It has one thread, so that forking is safe.
If an imported module has started threads, the server reports that and ends, and each site is started by a server of
its own. A server of one site does not fork, and becomes that site.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flowrl.channels.transport import transport_modules
from flowrl.machine.child_process import begin_child, end_with_forking_process
from flowrl.machine.process_exit import exit_now
from flowrl.runtime.sites.child_site import ChildSite

COMMON_MODULES = (*transport_modules(), "threadpoolctl")  # imported by every site
MAX_ERROR_CHARS = 3000  # writes of up to 4096 bytes to a pipe are atomic


def main() -> None:
    config = begin_child()
    serve(config, ServerReport(config["report"]))


def serve(config: dict[str, Any], report: ServerReport) -> None:
    """Fork the sites and report how each ends. In a fork, run the site."""
    with report.failure():
        child = ChildSite(config)
        child.make_modules_importable()
        for module in (*COMMON_MODULES, *config["imports"]):
            importlib.import_module(module)
        name = fork_sites(list(config["sites"]), report)
        if name is not None:
            child.connect(name)
    if name is not None:
        child.run()
        exit_now()


class ServerReport:
    """The writing end of the pipe to the process that started this one.

    Sites keep the pipe open, so that it is closed when all of them have ended. The lines are `["forked", site, pid]`,
    `["ended", site, exit status]`, `["failed", error]` and `["threads"]`, which means that the server cannot fork.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_inheritable(fd, False)

    def send(self, kind: str, *values: Any) -> None:
        os.write(self._fd, json.dumps([kind, *values]).encode() + b"\n")

    def close_in_forks(self) -> None:
        """Close the pipe in processes that nodes fork, because they are not sites."""
        os.register_at_fork(after_in_child=lambda: os.close(self._fd))

    @contextmanager
    def failure(self) -> Iterator[None]:
        """Report an error, and end the process with it."""
        try:
            yield
        except BaseException as error:
            self.send("failed", f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])
            sys.exit(1)


def fork_sites(names: list[str], report: ServerReport) -> str | None:
    """Fork the sites. In a site, return its name; in the server, return None when all sites have ended."""
    if len(names) == 1:
        report.close_in_forks()
        return names[0]
    if thread_count() > 1:
        report.send("threads")
        return None
    gc.freeze()  # pages that the garbage collector does not touch stay shared
    server = os.getpid()
    sites = {}
    for name in names:
        pid = os.fork()
        if pid == 0:
            end_with_forking_process(server)
            report.close_in_forks()
            np.random.seed()  # sites must not share the state of the global generator
            return name
        sites[pid] = name
        report.send("forked", name, pid)
    while sites:
        pid, status = os.wait()
        if pid in sites:
            report.send("ended", sites.pop(pid), os.waitstatus_to_exitcode(status))
    return None


def thread_count() -> int:
    """Return how many threads this process has, including threads that Python has not started.

    A system that does not say this may have any number, so two are assumed.
    """
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return 2


if __name__ == "__main__":
    main()
