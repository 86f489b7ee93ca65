"""The same faults on each launcher: a host killed, stopped or cut off. The run recovers, and nothing is left.

The tests of the launchers have the kills of the others, and what only one of them can suffer.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.records import Record
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runs.snapshot_files import snapshot_folders
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource
from tests.cluster.launcher_cases import (
    CASES,
    HOSTS,
    NETWORK_CASES,
    KubernetesCase,
    LauncherCase,
    command_of,
)
from tests.cluster.network import network, why_not
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
    """Harms a host once the run has a snapshot, and does something else once the run has lost it."""

    def __init__(
        self, harm: Callable[[], object], after_loss: Callable[[Run], object] = lambda run: None
    ) -> None:
        self._harm, self._after_loss = harm, after_loss
        self._has_harmed = self._has_lost = False
        self.notes: list[str] = []

    def note(self, run: Run, text: str) -> None:
        self.notes.append(text)
        if "is lost: nothing was heard of it" in text and not self._has_lost:
            self._has_lost = True
            self._after_loss(run)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if not self._has_harmed and snapshot_folders(Path(run.run_dir)):
            self._has_harmed = True
            self._harm()


def do_not_wait(run: Run) -> None:
    """Let the run wait for another host for a second only."""
    assert run.sites.hosts is not None
    run.sites.hosts.arrival.within_s = 1.0


def run_disturbed(case: LauncherCase, watcher: Watcher, **settings: Any) -> RunResult:
    launch = {**case.launch(), **settings}
    return Run(
        check(load_data(GRAPH)),
        placement=f"c={launch['type']}-*",
        out=case.out,
        limits=Limits(train_iters=ITERS),
        rendezvous=Rendezvous(case.listen, within_s=60, launch=launch),
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
    watcher = Disturber(lambda: case.signal_a_host(signal.SIGKILL))
    result = run_disturbed(case, watcher)
    assert (result.recoveries, results(case.out)) == (1, expected)
    case.nothing_is_left()


@pytest.mark.usefixtures("_soon_missed")
@pytest.mark.parametrize("case", LAUNCHERS, indirect=True)
def test_a_host_that_was_taken_for_dead_does_no_harm_when_it_continues(
    case: LauncherCase, expected: dict[str, Any]
) -> None:
    """Its sites are those of an earlier beginning of the run. They end, and the host joins again."""
    watcher = Disturber(
        lambda: case.signal_a_host(signal.SIGSTOP), lambda run: case.resume_the_host()
    )
    result = run_disturbed(case, watcher)
    assert_recovered(case, result, expected)
    assert sum("has joined" in note for note in watcher.notes) == 3
    case.nothing_is_left()


@pytest.mark.usefixtures("_soon_missed")
@pytest.mark.parametrize("case", LAUNCHERS, indirect=True)
def test_a_run_goes_on_without_a_host_that_stays_stopped_and_ends_it(
    case: LauncherCase, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.cluster.host_commands.END_S", 0.5)
    watcher = Disturber(lambda: case.signal_a_host(signal.SIGSTOP), do_not_wait)
    result = run_disturbed(case, watcher)
    assert_recovered(case, result, expected)
    case.nothing_is_left()
    until(lambda: not any(map(command_of, case.signalled)), "a site is left")


def assert_recovered(case: LauncherCase, result: RunResult, expected: dict[str, Any]) -> None:
    """The run has lost a host, says why, and has the results of an undisturbed one."""
    assert (result.recoveries, results(case.out)) == (1, expected)
    assert "is lost: nothing was heard of it for 2 s" in result.happened[0]


# hosts on machines that are cut off


@pytest.fixture
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LauncherCase]:
    """A launcher whose hosts are on machines of a network. This thread is on the machine of the run."""
    with network() as net, net.entered("run"), NETWORK_CASES[request.param](tmp_path, net) as made:
        yield made


on_a_network = [
    pytest.mark.needs("ip"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
on_far_slurm = [*on_a_network, *needs_slurm]
FAR_KUBERNETES = pytest.param("kubernetes", marks=on_a_network)
FAR_SLURM = pytest.param("slurm", marks=on_far_slurm)


@pytest.mark.usefixtures("_soon_missed")
@pytest.mark.parametrize("far", [FAR_KUBERNETES, FAR_SLURM], indirect=True)
def test_a_host_whose_machine_is_reached_again_does_no_harm(
    far: LauncherCase, expected: dict[str, Any]
) -> None:
    watcher = Disturber(lambda: far.cut_off("a"), lambda run: far.reconnect("a"))
    result = run_disturbed(far, watcher)
    assert_recovered(far, result, expected)
    far.nothing_is_left()


@pytest.mark.usefixtures("_soon_missed")
@pytest.mark.parametrize(
    ("far", "machine"),
    [
        pytest.param("kubernetes", "a", marks=on_a_network),
        pytest.param(
            "ssh", "a", marks=[*on_a_network, pytest.mark.needs("sshd"), pytest.mark.exhaustive]
        ),
        *(pytest.param("slurm", name, marks=on_far_slurm) for name in HOSTS),
    ],
    indirect=["far"],
)
def test_a_run_goes_on_without_a_machine_that_stays_cut_off_where_the_host_ends_by_itself(
    far: LauncherCase, machine: str, expected: dict[str, Any]
) -> None:
    """On Slurm, `srun` is on the first machine. No scheduler can end what is on a machine that it does not reach."""
    watcher = Disturber(lambda: far.cut_off(machine), do_not_wait)
    result = run_disturbed(far, watcher, rejoin="5s")
    assert_recovered(far, result, expected)
    far.nothing_is_left()


@pytest.mark.usefixtures("_soon_missed")
@pytest.mark.parametrize("far", [FAR_KUBERNETES], indirect=True)
def test_a_pod_of_a_machine_that_kubernetes_gives_up_is_replaced_while_it_lives(
    far: KubernetesCase, expected: dict[str, Any]
) -> None:
    def replace_pod(run: Run) -> None:
        far.server.give_up("a")

    watcher = Disturber(lambda: far.cut_off("a"), replace_pod)
    result = run_disturbed(far, watcher, rejoin="5s")
    assert_recovered(far, result, expected)
    assert sum("has joined" in note for note in watcher.notes) == 3
    assert any("was evicted (DeletionByPodGC)" in note for note in watcher.notes)
    far.nothing_is_left()
