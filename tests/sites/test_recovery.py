"""A run that loses a process goes on from its newest snapshot by itself, and ends as if it had not lost it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.checks.check import check
from flowrl.core.errors import NodeError
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.recovery import WAITS_S, BackOff
from flowrl.runs.run import Run
from flowrl.runs.run_snapshots import RunSnapshots
from flowrl.runs.token_file import TOKEN_FILE
from flowrl.runs.watcher import Watcher
from flowrl.runtime.sites.site_failures import SiteLost
from flowrl.runtime.snapshot_schedule import SnapshotSchedule
from tests.runs.test_resume import StopsAt
from tests.sites.run_comparison import read_results
from tests.toys.toy_runs import toy_graph

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
ROUNDS = 400  # more than there can be before the snapshot that the dying node waits for
KILLED = "site 'process:x' has ended: its process was killed by SIGKILL"


def dying_graph(
    folder: Path,
    firing: int = 17,
    times: int = 1,
    every: int = 5,
    waits: bool = True,
    in_setup: bool = False,
) -> dict[str, Any]:
    """Return a graph with a node that ends its process so often, from this firing on.

    If it `waits`, it does so when the run in `folder/r` has a snapshot; `in_setup`, before its first firing.
    """
    counted = folder / "counted"
    counted.mkdir(parents=True)
    nodes = {
        "c": {"type": "Source", "replicas": 2},
        "x": {
            "type": "tests.sites.fault_nodes:DyingNode",
            "firing": firing,
            "times": times,
            "folder": str(counted),
            "run": str(folder / "r") if waits else "",
            "in_setup": in_setup,
        },
        "l": "Learner",
        "e": "Evaluator",
    }
    edges = ["c -> l, x", "l.weights -> c.weights", {"l.weights -> e": {"every": 5}}]
    snapshots = {"every_rounds": every} if every else None
    more = {"snapshots": snapshots} if snapshots else {}
    return toy_graph(nodes, edges, **more, limits={"rounds": ROUNDS})


class Notes(Watcher):
    """Keeps what a run says about itself."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, run: Run, text: str) -> None:
        self.texts.append(text)


def start(graph: dict[str, Any], out: Path, placement: str, **options: Any) -> Run:
    return Run(check(load_data(graph)), out=out, placement=placement, hash_tokens=True, **options)


def results(folder: Path) -> dict[str, Any]:
    """Return all that does not say how the run came to its end."""
    found = read_results(folder)
    told = ("recoveries", "happened", "resume", "snapshot_rounds")
    return {
        **{name: value for name, value in found.items() if name not in told},
        "tokens": (folder / TOKEN_FILE).read_bytes(),
    }


@pytest.mark.parametrize(
    ("firing", "every", "whence"),
    [(17, 5, "from its snapshot after"), pytest.param(3, 20, "anew", marks=pytest.mark.slow)],
)
def test_a_run_that_loses_a_process_ends_as_one_that_does_not(
    firing: int, every: int, whence: str, tmp_path: Path
) -> None:
    graph = dying_graph(tmp_path, firing, every=every, waits=whence != "anew")
    notes = Notes()
    result = start(graph, tmp_path / "r", "x=process", watcher=notes).run()
    assert (result.status, result.recoveries, result.resumed_after) == ("finished", 1, None)
    [line] = result.happened
    assert line.startswith(f"{KILLED}; the run went on {whence}")
    assert notes.texts == [line]
    whole = start(graph, tmp_path / "whole", "serial").run()  # it has died often enough
    assert whole.recoveries == 0
    assert result.state_digest == whole.state_digest != ""
    assert results(tmp_path / "r") == results(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_is_lost_again_and_again_after_the_same_snapshot_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runs.recovery.WAITS_S", (0.0,))
    graph = dying_graph(tmp_path, times=10, every=150)  # it ends before there is a second one
    run = start(graph, tmp_path / "r", "x=process")
    with pytest.raises(SiteLost, match=KILLED):
        run.run()
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert (summary["status"], summary["why"], summary["recoveries"]) == ("failed", KILLED, 1)
    assert summary["resume"] == f"flowrl resume {tmp_path / 'r'}"
    for number in range(10):
        (tmp_path / "counted" / str(number)).touch()  # now it has died often enough
    again = flowrl.resume(tmp_path / "r", quiet=True)
    assert again.status == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, pytest.param(150, marks=pytest.mark.slow)])
def test_a_run_that_loses_a_process_before_its_first_firing_is_started_again(
    every: int, tmp_path: Path
) -> None:
    graph = dying_graph(tmp_path, every=every, in_setup=True)
    result = start(graph, tmp_path / "r", "x=process", limits=Limits(rounds=20)).run()
    assert (result.status, result.recoveries) == ("finished", 1)
    assert result.happened == (f"{KILLED}; the run was started again",)
    start(graph, tmp_path / "whole", "serial", limits=Limits(rounds=20)).run()
    assert results(tmp_path / "r") == results(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_is_lost_twice_in_the_same_way_before_its_first_firing_fails(
    tmp_path: Path,
) -> None:
    run = start(dying_graph(tmp_path, times=9, in_setup=True), tmp_path / "r", "x=process")
    with pytest.raises(SiteLost, match=KILLED):
        run.run()
    assert len(list((tmp_path / "counted").iterdir())) == 2
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert (summary["why"], summary["recoveries"]) == (KILLED, 1)
    [hint] = summary["warnings"]
    assert hint.startswith("the sites of the run were started again, and one was lost")


@pytest.mark.slow
def test_without_recovery_a_run_that_loses_a_process_fails(tmp_path: Path) -> None:
    run = start(dying_graph(tmp_path), tmp_path / "r", "x=process", recovers=False)
    with pytest.raises(SiteLost, match=KILLED):
        run.run()


@pytest.mark.slow
def test_before_its_first_snapshot_a_run_fails_and_says_what_would_have_helped(
    tmp_path: Path,
) -> None:
    run = start(dying_graph(tmp_path, every=0, waits=False), tmp_path / "r", "x=process")
    with pytest.raises(SiteLost, match=KILLED):
        run.run()
    assert run.ended is not None
    [hint] = run.ended.warnings
    assert hint.startswith("the run could not go on, as it had no snapshot yet; with `snapshots: ")


@pytest.mark.slow
def test_snapshots_are_saved_as_a_precaution_and_removed_at_a_good_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runs.run_snapshots.PRECAUTION_EVERY_S", 0.001)
    result = start(dying_graph(tmp_path, every=0), tmp_path / "r", "x=process").run()
    assert (result.status, result.recoveries, result.resume) == ("finished", 1, "")
    assert not (tmp_path / "r/snapshots").exists()
    whole = start(dying_graph(tmp_path / "w", every=0, times=0), tmp_path / "whole", "serial").run()
    assert result.digest == whole.digest


def test_precautions_of_a_fork_are_removed_at_its_good_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = flowrl.load(toy_graph({"c": "Source", "l": "Learner"}, ["c -> l"]))
    graph.run(out=tmp_path / "r", quiet=True, watcher=StopsAt(env_steps=100))
    monkeypatch.setattr("flowrl.runs.run_snapshots.PRECAUTION_EVERY_S", 0.001)
    result = flowrl.fork(tmp_path / "r", train_iters=500, out=tmp_path / "f", quiet=True)
    assert (result.status, result.resume) == ("finished", "")
    assert not (tmp_path / "f/snapshots").exists()
    assert (tmp_path / "r/snapshots").exists()


def test_precautions_of_a_run_that_fails_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runs.run_snapshots.PRECAUTION_EVERY_S", 0.001)
    graph = toy_graph({"c": "Source", "f": {"type": "FailingNode", "firing": 90}}, ["c -> f"])
    with pytest.raises(NodeError, match="no more"):
        start(graph, tmp_path / "r", "serial", limits=Limits(rounds=100)).run()
    assert json.loads((tmp_path / "r/summary.json").read_text())["resume"]


class Keeps(Node):
    """Has an attribute that no snapshot can save."""

    data = In("samples")

    def setup(self) -> None:
        self.lock = threading.Lock()

    def fire(self, data: Any) -> None:
        return None


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_precaution_that_cannot_be_taken_is_told_once(
    placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runs.run_snapshots.PRECAUTION_EVERY_S", 0.0001)
    graph = toy_graph({"c": "Source", "k": f"{__name__}:Keeps"}, ["c -> k"])
    result = start(graph, tmp_path / "r", placement, limits=Limits(rounds=200)).run()
    [warning] = result.warnings
    assert warning.startswith("no snapshot was saved: node 'k'")


def test_a_snapshot_that_was_asked_for_and_cannot_be_saved_is_always_told(tmp_path: Path) -> None:
    warned: list[str] = []
    snapshots = RunSnapshots(
        tmp_path, SnapshotSchedule(every_s=1.0), 1, {}, dict, warned.append, are_precautions=True
    )
    for problem in ("first", "again"):
        snapshots.fail(problem)
    assert warned == ["no snapshot was saved: first"]
    snapshots.schedule.request()
    snapshots.fail("asked for")
    assert warned[1:] == ["no snapshot was saved: asked for"]


def test_a_graph_can_do_without_precautions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runs.run_snapshots.PRECAUTION_EVERY_S", 0.0001)
    graph = toy_graph({"c": "Source", "k": f"{__name__}:Keeps"}, ["c -> k"], snapshots=False)
    result = start(graph, tmp_path / "r", "serial", limits=Limits(rounds=50)).run()
    assert result.warnings == ()
    assert (tmp_path / "r/graph.yaml").read_text().count("snapshots: false\n") == 1


def test_an_error_of_a_node_ends_the_run(tmp_path: Path) -> None:
    nodes = {"c": "Source", "f": {"type": "FailingNode", "firing": 9}}
    graph = toy_graph(nodes, ["c -> f"], snapshots={"every_rounds": 2})
    run = start(graph, tmp_path / "r", "threads", limits=Limits(rounds=ROUNDS))
    with pytest.raises(NodeError, match="no more"):
        run.run()
    assert run.recovery.count == 0


def test_it_waits_longer_each_time_until_there_is_a_newer_snapshot() -> None:
    back_off = BackOff()
    assert [back_off.wait_before_next(0) for _ in range(5)] == [*WAITS_S, None]
    assert back_off.wait_before_next(10) == WAITS_S[0]
    assert back_off.wait_before_next(10) == WAITS_S[1]
    assert back_off.wait_before_next(11) == WAITS_S[0]
