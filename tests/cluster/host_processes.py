"""Hosts as processes of this machine, reached over the loopback interface."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowrl.checks.check import check
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher

ANYWHERE = "tcp://127.0.0.1:*"
SOON_S = 60.0
Process = subprocess.Popen[str]


def host(address: str, *words: str, cwd: Path | None = None, code: str = "") -> Process:
    """A process that offers itself to the run at this address. It executes `code` first."""
    before = f"{code}\nfrom flowrl.cli import command\ncommand()"
    return subprocess.Popen(
        [sys.executable, "-c", before, "host", "--join", address, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class HostStarter(Watcher):
    """Starts hosts as soon as the run waits for them, and ends them on exit."""

    def __init__(self, *offers: Sequence[str], cwd: Path | None = None, code: str = "") -> None:
        self.offers, self.cwd, self.code = offers, cwd, code
        self.notes: list[str] = []
        self.processes: list[Process] = []

    def note(self, run: Run, text: str) -> None:
        self.notes.append(text)
        if text.startswith("waiting for hosts"):
            address = text.split()[-1]
            for words in self.offers:
                self.processes.append(host(address, *words, cwd=self.cwd, code=self.code))

    def __enter__(self) -> HostStarter:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait(self) -> list[tuple[int, str]]:
        """Wait until all hosts have ended; return the exit status and the output of each."""
        outs = [process.communicate(timeout=SOON_S)[0] for process in self.processes]
        return [(p.returncode, out) for p, out in zip(self.processes, outs, strict=True)]


def hosts_named(*names: str, cwd: Path | None = None, code: str = "") -> HostStarter:
    return HostStarter(*[("--name", name) for name in names], cwd=cwd, code=code)


def run_of(
    graph: Mapping[str, Any] | str | Path,
    placement: str,
    out: Path,
    watcher: Watcher,
    rendezvous: Rendezvous | None = None,
    **limits: Any,
) -> Run:
    """A run that uses hosts and has not begun."""
    return Run(
        check(load_data(graph) if isinstance(graph, Mapping) else load_graph(graph)),
        placement=placement,
        out=out,
        limits=Limits(**limits),
        rendezvous=rendezvous or Rendezvous(ANYWHERE, within_s=SOON_S),
        watcher=watcher,
    )
