"""Whole runs whose weights reach hosts by relays: they have the bits of a serial run, also when a host is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.records import Record
from flowrl.graph.model import Limits
from flowrl.runs.resume import resumed_run
from flowrl.runs.run import Run
from flowrl.runs.snapshot_files import snapshot_folders
from flowrl.runtime.records import RecordSource
from flowrl.runtime.remote import version_pieces
from flowrl.runtime.remote.version_pieces import MIN_PIECE_BYTES
from tests.cluster.host_processes import ANYWHERE, SOON_S, HostStarter, host, hosts_named, run_of
from tests.cluster.test_host_recovery import results
from tests.sites.run_comparison import read_results, run_graph
from tests.toys.toy_runs import toy_graph

pytestmark = pytest.mark.slow

HOSTS = ("a-1", "a-2", "a-3")
# Each host pretends to be on a machine of its own, since hosts of one machine need no relays.
OWN_MACHINE = "import os; from flowrl.machine import network_address as n; n.machine_id = lambda: str(os.getpid())"
PLACEMENT = "c=a-*:x"  # one site on each host, with two or three replicas
ITERS = 12
KILLED_ITERS = 300


def graph_with(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A graph of so many collectors that their weights need relays."""
    nodes = {"c": {"type": "ReadingSource", "replicas": 8}, "l": "Learner", "e": "Evaluator"}
    edges = ["c -> l", {"l.weights -> c.weights": weights}, {"l.weights -> e": {"every": 100}}]
    return toy_graph(nodes, edges, **more)


def rendezvous(hosts: int = len(HOSTS)) -> Rendezvous:
    return Rendezvous(ANYWHERE, hosts=hosts, within_s=SOON_S)


def relayed_run(graph: dict[str, Any], out: Path, watcher: HostStarter, iters: int) -> Run:
    return run_of(graph, PLACEMENT, out, watcher, rendezvous(), train_iters=iters)


@pytest.mark.parametrize("piece_bytes", [8, MIN_PIECE_BYTES])
def test_weights_that_relays_pass_on_give_the_same_bits(
    piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_pieces, "MIN_PIECE_BYTES", piece_bytes)  # the weights have 16
    graph = graph_with({"lag": 2, "dtype": "float16", "compress": "lz4"})
    serial = run_graph(graph, "serial", tmp_path / "serial", train_iters=ITERS)
    with hosts_named(*HOSTS, code=OWN_MACHINE) as watcher:
        run = relayed_run(graph, tmp_path / "r", watcher, ITERS)
        result = run.run()
        watcher.wait()
    assert run.sites.layout.relays == {"relay@a-1", "relay@a-2", "relay@a-3"}
    assert read_results(tmp_path / "r") == serial
    assert result.warnings == ()
    relayed = {f"l.weights -> c.weights (relay@{name})" for name in HOSTS}
    assert relayed == result.network_bytes.keys()


def test_hosts_on_the_machine_of_the_run_have_no_relays(tmp_path: Path) -> None:
    graph = graph_with({"lag": 1})
    serial = run_graph(graph, "serial", tmp_path / "serial", train_iters=ITERS)
    with hosts_named(*HOSTS) as watcher:
        run = relayed_run(graph, tmp_path / "r", watcher, ITERS)
        run.run()
    assert run.sites.layout.relays == frozenset()
    assert read_results(tmp_path / "r") == serial


def test_a_run_that_was_stopped_goes_on_with_relays(tmp_path: Path) -> None:
    graph = graph_with({}, snapshots={"every_rounds": 4})
    run_graph(graph, "serial", tmp_path / "whole", train_iters=2 * ITERS)
    run_graph(graph, "serial", tmp_path / "r", train_iters=ITERS)
    with hosts_named(*HOSTS, code=OWN_MACHINE) as watcher:
        run, _, _ = resumed_run(
            tmp_path / "r",
            placement=PLACEMENT,
            limits=Limits(train_iters=2 * ITERS),
            rendezvous=rendezvous(),
            watcher=watcher,
        )
        run.run()
        watcher.wait()
    assert len(run.sites.layout.relays) == len(HOSTS)
    assert read_results(tmp_path / "r")["digest"] == read_results(tmp_path / "whole")["digest"]


class HostKiller(HostStarter):
    """Kills the first host, which passes versions on to others, once there is a snapshot, and starts another one."""

    def __init__(self) -> None:
        super().__init__(*(("--name", name) for name in HOSTS), code=OWN_MACHINE)
        self.has_killed = False
        self.relays: set[frozenset[str]] = set()

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        self.relays.add(run.sites.layout.relays)
        if not self.has_killed and snapshot_folders(Path(run.run_dir)):
            self.has_killed = True
            killed = self.processes.pop(0)
            os.kill(killed.pid, signal.SIGKILL)
            killed.communicate()
            address = next(note.split()[-1] for note in self.notes if "waiting for" in note)
            self.processes.append(host(address, "--name", "a-4", code=OWN_MACHINE))
            self.offers = ()


def test_a_run_that_loses_the_host_of_a_relay_goes_on_with_other_relays(tmp_path: Path) -> None:
    graph = graph_with({"lag": 1}, snapshots={"every_rounds": 30})
    run_graph(graph, "serial", tmp_path / "whole", train_iters=KILLED_ITERS)
    with HostKiller() as watcher:
        result = relayed_run(graph, tmp_path / "r", watcher, KILLED_ITERS).run()
        outcomes = watcher.wait()
    assert result.recoveries == 1
    assert "host 'a-1' is lost" in result.happened[0]
    assert watcher.relays == {
        frozenset(f"relay@a-{number}" for number in numbers) for numbers in ((1, 2, 3), (2, 3, 4))
    }
    assert [code for code, _ in outcomes] == [0, 0, 0]
    assert results(tmp_path / "r") == results(tmp_path / "whole")


class ElasticHostKiller(HostStarter):
    """Kills the host of the elastic site once there is a snapshot."""

    def __init__(self) -> None:
        super().__init__(*(("--name", name) for name in (*HOSTS, "b")), code=OWN_MACHINE)
        self.has_killed = False

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if not self.has_killed and snapshot_folders(Path(run.run_dir)):
            self.has_killed = True
            self.processes[-1].kill()


def test_the_loss_of_an_elastic_host_does_not_concern_relays(tmp_path: Path) -> None:
    """It reads the weights, too, but from the site of the learner. For snapshots, all sites stand still."""
    graph = graph_with({"lag": 1}, snapshots={"every_rounds": 20})
    graph["nodes"] |= {
        "w": {**graph["nodes"]["c"], "replicas": 1},
        "d": toy_graph({"d": "Drain"}, [])["nodes"]["d"],
    }
    graph["edges"] += [
        {"w -> d": {"when_full": "drop_oldest"}},
        {"l.weights -> w.weights": {"latest": True}},
    ]
    serial = run_graph(graph, "serial", tmp_path / "serial", train_iters=KILLED_ITERS)
    with ElasticHostKiller() as watcher:
        where = f"{PLACEMENT},w=b"
        join = rendezvous(len(HOSTS) + 1)
        run = run_of(graph, where, tmp_path / "r", watcher, join, train_iters=KILLED_ITERS)
        result = run.run()
    assert len(run.sites.layout.relays) == len(HOSTS)
    assert result.recoveries == 0
    assert (result.snapshot_rounds or 0) > 20
    assert any(line.startswith("site 'b:w' was lost") for line in result.happened)
    assert result.digest == serial["digest"]
