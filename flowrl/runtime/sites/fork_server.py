"""The process that starts the sites of one process group: it imports once what they need, and forks one process
for each.

Its configuration is that of `child_site`, with `imports` (modules) and `report` (a descriptor) in addition.
It reports to the process that started it with lines of JSON, see `ServerReport`. It has one thread, so that
forking is safe: if a module that it imported has started others, it reports that and ends, and each site is
started alone. A server of one site forks nothing and becomes that site.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from flowrl.channels.transport import transport_modules
from flowrl.machine.child_process import begin_child, end_with_forking_process
from flowrl.runtime.sites.child_site import ChildSite

COMMON_MODULES = (*transport_modules(), "threadpoolctl")  # what every site would import
TEXT_BYTES = 3000  # of an error: lines of a pipe stay whole up to 4096 bytes


def main() -> None:
    config = begin_child()
    serve(config, ServerReport(config["report"]))


def serve(config: dict[str, Any], report: ServerReport) -> None:
    """Fork the sites and report how each ends; in a fork, be that site."""
    with report.failure():
        child = ChildSite(config)
        for module in (*COMMON_MODULES, *config["imports"]):
            importlib.import_module(module)
        name = fork_sites(list(config["sites"]), report)
        if name is not None:
            faulthandler.enable(2)  # a crash prints where it happened
            child.connect(name)
    if name is not None:
        child.run()
        exit_now()


class ServerReport:
    """The writing end of the pipe to the process that started this one. Sites keep it open: its end is theirs.

    Lines: ["forked", site, pid], ["ended", site, exit status], ["failed", error], ["threads"] (it cannot fork).
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_inheritable(fd, False)

    def send(self, kind: str, *values: Any) -> None:
        os.write(self._fd, json.dumps([kind, *values]).encode() + b"\n")

    def close_in_forks(self) -> None:
        """A process that a node forks is not a site, and must not keep the pipe open."""
        os.register_at_fork(after_in_child=lambda: os.close(self._fd))

    @contextmanager
    def failure(self) -> Iterator[None]:
        """Report an error, and end the process with it."""
        try:
            yield
        except BaseException as error:
            self.send("failed", f"{type(error).__name__}: {error}"[:TEXT_BYTES])
            sys.exit(1)


def fork_sites(names: list[str], report: ServerReport) -> str | None:
    """In each site, its name; in the server, None, when all sites have ended."""
    if len(names) == 1:
        report.close_in_forks()
        return names[0]
    if thread_count() > 1:
        report.send("threads")
        return None
    gc.freeze()  # pages that the collector does not touch stay shared
    server = os.getpid()
    sites = {}
    for name in names:
        pid = os.fork()
        if pid == 0:
            end_with_forking_process(server)
            report.close_in_forks()
            np.random.seed()  # sites must not share the state of the generator that no node should use
            return name
        sites[pid] = name
        report.send("forked", name, pid)
    while sites:
        pid, status = os.wait()
        if pid in sites:
            report.send("ended", sites.pop(pid), os.waitstatus_to_exitcode(status))
    return None


def thread_count() -> int:
    """How many threads this process has, including those that Python did not start."""
    return len(os.listdir("/proc/self/task"))


def exit_now() -> None:
    """End without the interpreter's shutdown: with torch loaded that takes longer than a short run."""
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # closed, or without a reader
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
