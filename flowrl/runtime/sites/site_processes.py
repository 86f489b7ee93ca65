"""Starts, watches and ends the site processes of one machine.

Sites that need the same modules share a fork server, which imports the modules once and forks the sites. Sites that
were given GPUs of their own have a server of their own, as libraries find GPUs when they are imported. When a server
ends, its sites end. A server and its sites are a session of their own, so that the end of a run also finds
processes that nodes have left behind.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from flowrl.checks.check import CheckedGraph
from flowrl.graph.site_layout import SiteLayout
from flowrl.machine.child_process import STDERR, ChildProcess, exit_text
from flowrl.machine.gpus import gpu_variables
from flowrl.machine.numerics import THREAD_VARIABLES
from flowrl.runtime.disturbances import SiteSignal

KILLED_S = 2.0  # in which the system ends killed processes

Modules = tuple[str, ...]
Gpus = tuple[str, ...]
Output = int | IO[bytes]


class SiteProcesses:
    """All site processes of one coordinator, or of one host.

    Their output goes to `output`: by default to standard error, because `run --json` reserves standard output.
    """

    def __init__(self, output: Output = STDERR) -> None:
        self._output = output
        self._servers: list[ForkServer] = []
        self._server_of: dict[str, ForkServer] = {}
        self._fds: Sequence[int] = ()

    def start(
        self,
        config: Mapping[str, Any],
        sites: Mapping[str, Any],
        modules: Mapping[str, Modules],
        fds: Sequence[int] = (),
    ) -> None:
        """Start sites, with the configuration that `child_site` describes.

        `config` is the part for all sites, `sites` the part for each. `modules` are the modules that each site needs.
        The processes inherit `fds`.
        """
        self._fds = fds
        groups: dict[tuple[Modules, Gpus], list[str]] = {}
        for name, site in sites.items():
            groups.setdefault((modules[name], tuple(site["gpus"])), []).append(name)
        for (needed, _), names in groups.items():
            for group in [names] if sys.platform == "linux" else [[name] for name in names]:
                self._start({**config, "sites": {n: sites[n] for n in group}, "imports": needed})

    def _start(self, config: Mapping[str, Any]) -> None:
        server = ForkServer(config, self._output, self._fds)
        self._servers.append(server)
        self._server_of.update(dict.fromkeys(config["sites"], server))

    def find_failure(self, name: str) -> str | None:
        """Return why a site's process has ended, or None while it runs."""
        server = self._server_of.get(name)
        if server is None:
            return None
        server.read_report()
        if server.cannot_fork:
            self._start_each_alone(server)
            return None
        return server.find_failure(name)

    def _start_each_alone(self, server: ForkServer) -> None:
        """Start each site of a server by a server of its own, because an imported module has started threads."""
        self._servers.remove(server)
        server.end(time.monotonic())
        for name, site in server.config["sites"].items():
            self._start({**server.config, "sites": {name: site}})

    def pids(self) -> dict[str, int]:
        """Return the process id of each site that has been started."""
        for server in self._servers:
            server.read_report()
        return {name: pid for server in self._servers for name, pid in server.pids.items()}

    @property
    def sessions(self) -> list[int]:
        return [server.session for server in self._servers]

    def signal(self, signal: SiteSignal) -> None:
        """Send a signal to the process of a site, if it is one of these and has not ended."""
        pid = self.pids().get(signal.site)
        if pid is not None and self.find_failure(signal.site) is None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.number)

    def signal_all(self, number: int) -> None:
        """Send a signal to the processes of all sites."""
        for site in self.pids():
            self.signal(SiteSignal(site, number))

    def end(self, deadline: float) -> None:
        """Wait until all processes have ended. At the deadline (of the monotonic clock), kill the others."""
        for server in self._servers:
            server.end(deadline)


class ForkServer:
    """The handle of a fork server. A server of one site is that site."""

    def __init__(self, config: Mapping[str, Any], output: Output, fds: Sequence[int]) -> None:
        self.config = config
        self.cannot_fork = False
        self.pids: dict[str, int] = {}  # of its sites
        self._failure = ""  # an error before any site was started
        self._statuses: dict[str, int] = {}  # reported exit statuses of its sites
        self._unread = b""
        self._report, report = os.pipe()
        os.set_blocking(self._report, False)
        try:
            self._process = ChildProcess(
                "flowrl.runtime.sites.fork_server",
                {**config, "report": report},
                output=output,
                fds=(report, *fds),
                # Libraries must not start threads while they are imported.
                environment={
                    **os.environ,
                    **dict.fromkeys(THREAD_VARIABLES, "1"),
                    **_gpus_of(config),
                },
            )
            if len(config["sites"]) == 1:
                self.pids = dict.fromkeys(config["sites"], self._process.pid)
        finally:
            os.close(report)

    @property
    def session(self) -> int:
        return self._process.pid

    def read_report(self) -> None:
        """Read the server's reports, which `fork_server.ServerReport` describes."""
        with suppress(BlockingIOError):
            while data := os.read(self._report, 1 << 16):
                self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for kind, *values in map(json.loads, lines):
            if kind == "forked":
                self.pids[values[0]] = values[1]
            elif kind == "ended":
                self._statuses[values[0]] = values[1]
            elif kind == "failed":
                self._failure = self._failure or values[0]
            elif kind == "threads":
                self.cannot_fork = True

    def find_failure(self, name: str) -> str | None:
        """Return why a site has ended, or None while it runs."""
        server_status = None if name in self._statuses else self._process.exit_status()
        if server_status is not None:
            self.read_report()  # for the last lines
        if name in self._statuses:
            return self._failure or f"its process {exit_text(self._statuses[name])}"
        if server_status is None:
            return None
        whose = "its process" if len(self.config["sites"]) == 1 else "the process that forked it"
        return self._failure or f"{whose} {exit_text(server_status)}"

    def end(self, deadline: float) -> None:
        """Wait until the server and its sites have ended. At the deadline, kill its session."""
        self._process.wait(deadline)
        self._process.kill()
        self._wait_for_sites()
        os.close(self._report)

    def _wait_for_sites(self) -> None:
        """Wait until the pipe of the reports is closed, which living sites hold open."""
        poller = select.poll()
        poller.register(self._report, select.POLLIN)
        deadline = time.monotonic() + KILLED_S
        while (left_s := deadline - time.monotonic()) > 0 and poller.poll(left_s * 1000):
            with suppress(BlockingIOError):
                if not os.read(self._report, 1 << 16):
                    return


def _gpus_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables for the GPUs of a server's sites, which all have the same; none if they may see all."""
    gpus = next(iter(config["sites"].values()))["gpus"]
    return gpu_variables(gpus) if gpus else {}


def modules_needed(checked: CheckedGraph, layout: SiteLayout, site: str) -> Modules:
    """Return the modules that the nodes of a site declare in `Facts.imports`."""
    facts = (checked.facts[node] for node, _ in layout.instances_on(site))
    return tuple(sorted({module for fact in facts for module in fact.imports}))
