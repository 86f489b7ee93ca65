"""The Python interface to what is done with runs, in the words of the commands: record, replay, chaos, snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.errors import GraphError, RunError, UsageError
from flowrl.core.node import Node
from flowrl.core.ports import In
from tests.runs.threaded_runs import pair, running_in_a_thread, wait_for_status
from tests.toys.toy_runs import toy_graph

NODES = {"c": "Source", "l": "Learner", "e": "Evaluator"}
EDGES = ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}]
GRAPH = toy_graph(NODES, EDGES)


class FailsAtThree(Node):
    """Fails in its third firing."""

    data = In("samples")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Any) -> None:
        if self.fired == 2:
            raise OverflowError("three")
        self.fired += 1


def test_a_graph_is_recorded_and_its_nodes_are_replayed(tmp_path: Path) -> None:
    tape = tmp_path / "l.tape"
    result = flowrl.load(GRAPH).record(
        "l", tape=tape, train_iters=5, out=tmp_path / "r", quiet=True
    )
    assert (result.status, result.train_iters) == ("finished", 5)
    found = flowrl.replay(tape, "l")
    assert found.is_exact
    assert found.equal == {"l.weights -> c.weights": 5, "l.weights -> e.weights": 2}
    together = flowrl.replay(tape, "c", "l")
    assert [one.instance for one in together.instances] == ["c", "l"]
    with pytest.raises(UsageError, match=r"l\.tape: it exists already"):
        flowrl.load(GRAPH).record("l", tape=tape, quiet=True)
    with pytest.raises(UsageError, match="name a node that is run against it"):
        flowrl.replay(tape)


def test_a_run_is_recorded_from_a_snapshot_or_its_beginning(tmp_path: Path) -> None:
    graph = flowrl.load(GRAPH, {"snapshots.every_rounds": 1000})
    graph.run(train_iters=5, out=tmp_path / "r", quiet=True)
    flowrl.record(tmp_path / "r", ["c", "l"], train_iters=8, out=tmp_path / "s", quiet=True)
    later = flowrl.replay(tmp_path / "s" / "tokens.tape", "l")
    assert later.is_exact
    assert 0 < later.instances[0].first_firing < 8
    assert later.instances[0].first_firing + later.instances[0].firings == 8
    flowrl.record(tmp_path / "r", "l", at=0, out=tmp_path / "t", quiet=True)
    whole = flowrl.replay(tmp_path / "t" / "tokens.tape", "l")
    assert (whole.instances[0].first_firing, whole.instances[0].firings) == (0, 5)


def test_a_failed_firing_raises_its_error_again(tmp_path: Path) -> None:
    graph = toy_graph({**NODES, "f": f"{__name__}:FailsAtThree"}, [*EDGES, "c -> f"])
    with pytest.raises(flowrl.NodeError):
        flowrl.load(graph).run(out=tmp_path / "r", train_iters=9, quiet=True)
    tape = tmp_path / "r" / "crash-f.tape"
    with pytest.raises(OverflowError, match="three"):
        flowrl.replay(tape)
    with pytest.raises(UsageError, match="is of one failed firing, so a node has no meaning"):
        flowrl.replay(tape, "f")


@pytest.mark.slow
def test_a_graph_is_checked_twice() -> None:
    found = flowrl.load(GRAPH).check_twice(train_iters=4)
    assert (found.is_exact, found.differences) == (True, ())
    assert [result.placement for result in found.results] == ["serial", "processes"]
    assert {result.train_iters for result in found.results} == {4}
    with pytest.raises(GraphError, match="gaol"):
        flowrl.load(GRAPH, {"e.gaol": 1}).check_twice()


@pytest.mark.slow
def test_a_graph_is_disturbed() -> None:
    sleeps = {"type": "tests.sites.fault_nodes:SleepingNode", "sleep_s": 0.01}
    graph = flowrl.load(toy_graph({**NODES, "s": sleeps}, [*EDGES, "c -> s"]))
    found = graph.chaos(kill=["s@0.3s", "c@10h"], train_iters=100, quiet=True)
    assert found.is_exact
    assert [[str(fault) for fault in faults] for faults in (found.faults, found.missed)] == [
        *[["0.3 s: killed s"], ["36000 s: killed c"]]
    ]
    assert found.repetition.results[1].recoveries == 1


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ({}, "nothing is to happen; add a fault, such as kill='collector@5s'"),
        ({"kill": "c"}, "--kill c: expected NODE@30s"),
        ({"stop": ["c@5s"]}, "--stop c@5s: expected NODE@30s,10s"),
        ({"kill": 3}, "kill is 3; expected a text, or a list of texts"),
    ],
)
def test_faults_that_cannot_be_made_are_refused(faults: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        flowrl.load(GRAPH).chaos(**faults)


def test_an_active_run_saves_a_snapshot(tmp_path: Path) -> None:
    out = tmp_path / "r"
    with running_in_a_thread(pair(), out) as entry:
        wait_for_status(entry, lambda status: status.env_steps > 0)
        rounds = flowrl.snapshot(out)
        assert (out / "snapshots" / str(rounds) / "manifest.json").exists()
    with pytest.raises((UsageError, RunError)):
        flowrl.snapshot(out)
