"""The same faults on each launcher: a host killed or stopped. The run recovers, and nothing is left.

The tests of the launchers have the kills of the others, and what only one of them can suffer.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.records import Record
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.display import Watcher
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runs.snapshot_files import snapshot_folders
from flowrl.runtime.records import RecordSource
from tests.cluster.launcher_cases import CASES, LauncherCase, command_of, resume, signal_host
from tests.cluster.slurm import until
from tests.sites.run_comparison import read_results, run_graph
from tests.toys.toy_runs import toy_graph

pytestmark = pytest.mark.slow
ITERS = 300
GRAPH = toy_graph(
    {"c": {"type": "Source", "replicas": 2}, "l": "Learner"},
    ["c -> l", "l.weights -> c.weights"],
    snapshots={"every_rounds": 50},
)
needs_slurm = [
    pytest.mark.needs("slurmctld"),
    pytest.mark.skipif(
        os.geteuid() != 0 or "FLOWRL_TESTS_HARM_CLUSTERS" not in os.environ,
        reason="`make chaos` harms a Slurm cluster, which needs root",
    ),
]
LAUNCHERS = [
    "local",
    pytest.param("ssh", marks=[pytest.mark.needs("sshd"), pytest.mark.exhaustive]),
    pytest.param("kubernetes", marks=pytest.mark.exhaustive),
    pytest.param("slurm", marks=needs_slurm),
]


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LauncherCase]:
    with CASES[request.param](tmp_path) as made:
        yield made


class Disturber(Watcher):
    """Sends a signal to a host and its sites once the run has a snapshot."""

    def __init__(self, case: LauncherCase, number: int) -> None:
        self.case, self.number = case, number
        self.disturbed: list[int] = []
        self.notes: list[str] = []

    def note(self, run: Run, text: str) -> None:
        self.notes.append(text)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if not self.disturbed and snapshot_folders(Path(run.run_dir)):
            self.disturbed = signal_host(self.case.hosts()[0], self.number)


class Resumer(Disturber):
    """Stops a host, and lets it continue when the run has gone on without it."""

    def note(self, run: Run, text: str) -> None:
        super().note(run, text)
        if "is lost: nothing was heard of it" in text:
            resume(self.disturbed)


class Leaver(Disturber):
    """Stops a host, and lets the run wait for another one for a second only."""

    def note(self, run: Run, text: str) -> None:
        super().note(run, text)
        if "is lost: nothing was heard of it" in text:
            assert run.sites.hosts is not None
            run.sites.hosts.rendezvous = replace(run.sites.hosts.rendezvous, within_s=1)


def run_disturbed(case: LauncherCase, watcher: Watcher) -> RunResult:
    label = case.launch()["type"]
    return Run(
        check(load_data(GRAPH)),
        placement=f"c={label}-*",
        out=case.out,
        limits=Limits(train_iters=ITERS),
        rendezvous=Rendezvous(within_s=60, launch=case.launch()),
        watcher=watcher,
    ).run()


def results(folder: Path) -> dict[str, Any]:
    found = read_results(folder)
    told = ("recoveries", "happened", "resume", "snapshot_rounds", "warnings")
    return {n: value for n, value in found.items() if n not in told and not n.startswith("hosts/")}


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, Any]:
    """The results of an undisturbed run."""
    run_graph(GRAPH, "serial", tmp_path / "whole", train_iters=ITERS)
    return results(tmp_path / "whole")


@pytest.fixture
def _soon_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.cluster.joined_hosts.SILENCE_S", 2.0)


@pytest.mark.parametrize(
    "case", [pytest.param("kubernetes", marks=pytest.mark.exhaustive)], indirect=True
)
def test_a_run_recovers_from_a_host_that_is_killed(
    case: LauncherCase, expected: dict[str, Any]
) -> None:
    watcher = Disturber(case, signal.SIGKILL)
    result = run_disturbed(case, watcher)
    assert (result.recoveries, results(case.out)) == (1, expected)
    case.nothing_is_left()


@pytest.mark.usefixtures("_soon_missed")
@pytest.mark.parametrize("case", LAUNCHERS, indirect=True)
def test_a_host_that_was_taken_for_dead_does_no_harm_when_it_continues(
    case: LauncherCase, expected: dict[str, Any]
) -> None:
    """Its sites are those of an earlier beginning of the run. They end, and the host joins again."""
    watcher = Resumer(case, signal.SIGSTOP)
    result = run_disturbed(case, watcher)
    assert (result.recoveries, results(case.out)) == (1, expected)
    assert "is lost: nothing was heard of it for 2 s" in result.happened[0]
    assert sum("has joined" in note for note in watcher.notes) == 3
    case.nothing_is_left()


@pytest.mark.usefixtures("_soon_missed")
@pytest.mark.parametrize("case", LAUNCHERS, indirect=True)
def test_a_run_goes_on_without_a_host_that_stays_stopped_and_ends_it(
    case: LauncherCase, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.cluster.host_commands.END_S", 0.5)
    watcher = Leaver(case, signal.SIGSTOP)
    result = run_disturbed(case, watcher)
    assert (result.recoveries, results(case.out)) == (1, expected)
    case.nothing_is_left()
    until(lambda: not any(map(command_of, watcher.disturbed)), "a site is left")
