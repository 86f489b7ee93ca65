"""The site processes of this host: started, watched, ended.

Sites that load the same modules share a *fork server*, which loads them once and forks the sites.
Whatever ends a server ends its sites; a server and its sites are a session of their own, so a terminal's Ctrl-C
reaches only the coordinator, and what nodes left behind is found at the end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from flowrl.checks.check import CheckedGraph
from flowrl.graph.site_layout import SiteLayout
from flowrl.machine.numerics import THREADS

STDERR = 2  # not standard output: `run --json` prints one line there, and nothing else
LOOK_S = 0.005
GONE_S = 2.0  # in which the system ends what was killed

Loads = tuple[str, ...]  # modules
Output = int | IO[bytes]


class SiteProcesses:
    """All site processes of one coordinator, or of one host; what they print goes to `output`."""

    def __init__(self, output: Output = STDERR) -> None:
        self._output = output
        self._servers: list[ForkServer] = []
        self._of: dict[str, ForkServer] = {}

    def start(
        self,
        told: Mapping[str, Any],
        sites: Mapping[str, Any],
        loads: Mapping[str, Loads],
        fds: Sequence[int] = (),
    ) -> None:
        """Start sites: `told` is for all, what `sites` holds for each; `loads`: the modules that each needs;
        `fds`: what they inherit."""
        self._fds = fds
        groups: dict[Loads, list[str]] = {}
        for name in sites:
            groups.setdefault(loads[name], []).append(name)
        for modules, names in groups.items():
            for some in [names] if sys.platform == "linux" else [[name] for name in names]:
                self._start({**told, "sites": {n: sites[n] for n in some}, "loads": modules})

    def _start(self, told: Mapping[str, Any]) -> None:
        server = ForkServer(told, self._output, self._fds)
        self._servers.append(server)
        self._of.update(dict.fromkeys(told["sites"], server))

    def why_ended(self, name: str) -> str | None:
        """Why a site's process has ended, or None."""
        server = self._of.get(name)
        if server is None:
            return None
        server.look()
        if server.cannot_fork:
            self._start_alone(server)
            return None
        return server.why_ended(name)

    def _start_alone(self, server: ForkServer) -> None:
        """What a server loaded has started threads: its sites are started one by one."""
        self._servers.remove(server)
        server.end(time.monotonic())
        for name, site in server.told["sites"].items():
            self._start({**server.told, "sites": {name: site}})

    def pids(self) -> dict[str, int]:
        """The number of each site's process, as far as it is there."""
        for server in self._servers:
            server.look()
        return {name: pid for server in self._servers for name, pid in server.pids.items()}

    def end(self, deadline: float) -> None:
        """Wait until all have ended; at the deadline (of the monotonic clock), kill what is left."""
        for server in self._servers:
            server.end(deadline)


class ForkServer:
    """A server as its coordinator sees it; of one site, it is that site."""

    def __init__(self, told: Mapping[str, Any], output: Output, fds: Sequence[int]) -> None:
        self.told = told
        self.cannot_fork = False
        self._failed = ""  # what went wrong before any site was at work
        self._codes: dict[str, int] = {}  # how its sites ended, as far as it told
        self.pids: dict[str, int] = {}  # of its sites
        self._unread = b""
        self._fd, theirs = os.pipe()
        os.set_blocking(self._fd, False)
        try:
            self._process = _process(told, output, theirs, fds)
            if len(told["sites"]) == 1:
                self.pids = dict.fromkeys(told["sites"], self._process.pid)
        finally:
            os.close(theirs)

    def look(self) -> None:
        """Take in what it told."""
        try:
            while data := os.read(self._fd, 1 << 16):
                self._unread += data
        except BlockingIOError:
            pass
        *lines, self._unread = self._unread.split(b"\n")
        for kind, *words in map(json.loads, lines):
            if kind == "forked":
                self.pids[words[0]] = words[1]
            elif kind == "ended":
                self._codes[words[0]] = words[1]
            elif kind == "failed":
                self._failed = self._failed or words[0]
            elif kind == "threads":
                self.cannot_fork = True

    def why_ended(self, name: str) -> str | None:
        """Why a site has ended, as far as is known."""
        if name in self._codes:
            return self._failed or _why("its process", self._codes[name])
        if not self._has_ended():
            return None
        self.look()  # its last words
        if name in self._codes:
            return self._failed or _why("its process", self._codes[name])
        whose = "its process" if len(self.told["sites"]) == 1 else "the process that forked it"
        return self._failed or _why(whose, self._process.wait())

    def _has_ended(self) -> bool:
        """Without taking its exit status: until that is taken, its number is nobody else's."""
        process = self._process
        if process.returncode is not None or not hasattr(os, "waitid"):
            return process.poll() is not None
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, process.pid, flags) is not None
        except ChildProcessError:
            return process.poll() is not None

    def end(self, deadline: float) -> None:
        """Wait until it and its sites have ended; at the deadline, kill all."""
        if self._process.returncode is None:
            while not self._has_ended() and time.monotonic() < deadline:
                time.sleep(LOOK_S)
            self._kill()
            self._process.wait()
        self._wait_for_all()
        os.close(self._fd)

    def _kill(self) -> None:
        """Kill the session: the server, its sites, and what nodes left behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _wait_for_all(self) -> None:
        """Its sites hold the pipe as long as they are there."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        deadline = time.monotonic() + GONE_S
        while (left_s := deadline - time.monotonic()) > 0 and poller.poll(left_s * 1000):
            with suppress(BlockingIOError):
                if not os.read(self._fd, 1 << 16):
                    return


def _process(
    told: Mapping[str, Any], output: Output, report: int, fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a server. What it is told lies in a file: a pipe may be full, or broken."""
    words = {**told, "parent": os.getpid(), "path": sys.path}
    command = [sys.executable, "-m", "flowrl.runtime.processes.fork_server", str(report)]
    alone = dict.fromkeys(THREADS, "1")  # libraries that start threads as they are loaded do not
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(words).encode())
        file.seek(0)
        return subprocess.Popen(
            command,
            stdin=file,
            stdout=output,
            stderr=None if output == STDERR else output,
            pass_fds=(report, *fds),
            env={**os.environ, **alone},
            start_new_session=True,
        )


def _why(who: str, code: int) -> str:
    if code < 0:
        names = {s.value: s.name for s in signal.Signals}
        return f"{who} was killed by {names.get(-code, f'signal {-code}')}"
    return f"{who} ended with status {code}"


def loads_of(checked: CheckedGraph, layout: SiteLayout, site: str) -> Loads:
    """The modules that the nodes of a site say they need."""
    facts = (checked.facts[node] for node, _ in layout.instances_on(site))
    return tuple(sorted({module for fact in facts for module in fact.imports}))
