"""Site processes: the modules that they import, their forks, and their errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.errors import GraphError, UsageError
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Limits
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import make_layout
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.reward_model import LearnedRewardModel
from flowrl.runs.run import Run
from flowrl.runtime.records import RecordSource
from flowrl.runtime.sites.coordinator import Coordinator
from flowrl.runtime.sites.graph_transfer import read_graph
from flowrl.runtime.sites.site_failures import SiteLost
from tests.quick_selection import exhaustive_except
from tests.toys.toy_nodes import FailingNode
from tests.toys.toy_runs import toy_graph

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")

ACT_WITH_TORCH = {"crazyclimber_ppo"}  # whose model is convolutional


def run_in_processes(nodes: dict[str, Any], edges: list[Any], out: Path) -> dict[str, list[str]]:
    """Run a graph in processes, and return the lines that each node logged."""
    run = Run(
        check(load_data(toy_graph(nodes, edges))),
        placement="processes",
        out=out,
        limits=Limits(rounds=3),
    )
    run.run()
    return {p.stem: p.read_text().splitlines() for p in (out / "logs").iterdir()}


def module_reporter(
    *modules: str, looks_for: tuple[str, ...] = ("torch", "wave")
) -> dict[str, Any]:
    """Return a node that declares to need these modules."""
    node = {"type": "tests.runtime.process_nodes:ModuleReporter", "loads": list(modules)}
    return {**node, "looks_for": list(looks_for)}


@contextmanager
def start_sites(graph: dict[str, Any] | str) -> Iterator[Coordinator]:
    """Start the sites of a graph in processes, and yield their coordinator when they are ready."""

    class NullSink:
        def record(self, source: RecordSource, record: Any) -> None:
            """Ignore the record."""

    checked = check(
        load_graph(graph) if isinstance(graph, str) else load_data(graph)
    ).require_sound()
    layout = make_layout(checked.graph, resolve_placement(checked.graph, "processes"))
    coordinator = Coordinator(checked, NullSink(), layout, 0, Limits(rounds=1))
    try:
        coordinator.start()
        yield coordinator
    finally:
        coordinator.close()


def parent_pids(coordinator: Coordinator) -> dict[str, int]:
    """Return the id of each site's parent process."""
    pids = coordinator.sites.processes.pids()
    stats = {name: Path(f"/proc/{pid}/stat").read_text() for name, pid in pids.items()}
    return {name: int(stat.rpartition(")")[2].split()[1]) for name, stat in stats.items()}


@pytest.mark.slow
def test_a_site_loads_what_its_nodes_need_and_nothing_that_others_need(tmp_path: Path) -> None:
    nodes = {
        "c": "Source",
        "plain": module_reporter(),
        "one": module_reporter("wave"),
        "two": module_reporter("wave"),
    }
    found = run_in_processes(nodes, ["c -> plain, one, two"], tmp_path / "r")
    assert found["plain"] == ["[0] loaded: none of them"]
    assert found["one"] == found["two"] == ["[0] loaded: wave"]


@pytest.mark.slow
def test_sites_with_the_same_modules_are_forked_by_one_process() -> None:
    nodes = {
        "c": "Source",
        "d": "Drain",
        "one": module_reporter("wave"),
        "two": module_reporter("wave"),
    }
    with start_sites(toy_graph(nodes, ["c -> d, one, two"])) as coordinator:
        found = parent_pids(coordinator)
    assert found["process:c"] == found["process:d"]
    assert found["process:one"] == found["process:two"]
    assert len({*found.values(), os.getpid()}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", exhaustive_except([("cartpole_dqn_rnd",)], sorted({*bundled_graphs()} - ACT_WITH_TORCH))
)
def test_only_learning_sites_of_a_bundled_graph_load_torch(name: str) -> None:
    with start_sites(name) as coordinator:
        pids = coordinator.sites.processes.pids()
        maps = {site: Path(f"/proc/{pid}/maps").read_text() for site, pid in pids.items()}
        graph = coordinator.checked.graph
        learning = (Learner, LearnedRewardModel)
        learns = {f"process:{n}" for n, s in graph.nodes.items() if issubclass(s.cls, learning)}
    loaded = {site.partition("#")[0] for site, text in maps.items() if "libtorch" in text}
    assert loaded == learns
    assert maps.keys() > learns


@pytest.mark.slow
def test_the_coordinator_does_not_load_torch(tmp_path: Path) -> None:
    code = f"""
import os, sys
from flowrl.cli import main
words = ["run", "cartpole_dqn", "--placement", "processes", "--train-iters", "1", "--quiet"]
status = main([*words, "--out", {str(tmp_path / "r")!r}])
os._exit(3 if "torch" in sys.modules else status)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_sites_whose_modules_start_threads_are_not_forked() -> None:
    module = "tests.runtime.thread_starting_module"
    nodes = {
        "c": "Source",
        "one": module_reporter(module),
        "two": module_reporter(module),
        "d": "Drain",
    }
    with start_sites(toy_graph(nodes, ["c -> one, two, d"])) as coordinator:
        found = parent_pids(coordinator)
    assert found["process:one"] == found["process:two"] == os.getpid()
    assert found["process:c"] == found["process:d"] != os.getpid()


@pytest.mark.slow
def test_a_module_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    nodes = {
        "c": "Source",
        "one": module_reporter("no_such_module"),
        "two": module_reporter("no_such_module"),
    }
    began = time.monotonic()
    with pytest.raises(SiteLost, match="No module named 'no_such_module'"):
        run_in_processes(nodes, ["c -> one, two"], tmp_path / "r")
    assert time.monotonic() - began < 60


def test_a_node_prints_to_standard_error_and_reads_an_empty_input(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = {"c": "Source", "p": "tests.runtime.process_nodes:PrintingNode"}
    found = run_in_processes(nodes, ["c -> p"], tmp_path / "r")
    assert found["p"] == [f"[{firing}] read ''" for firing in range(3)]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "printed by a node\n" * 3)


def test_sites_import_modules_from_the_coordinators_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_alone.py").write_text("from tests.toys.toy_nodes import Drain as Own\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = run_in_processes({"c": "Source", "o": "mine_alone:Own"}, ["c -> o"], tmp_path / "r")
    assert found.keys() == {"c", "o"}


@pytest.mark.slow
def test_a_run_in_processes_writes_a_summary(tmp_path: Path) -> None:
    run_in_processes({"c": "Source", "d": "Drain"}, ["c -> d"], tmp_path / "r")
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["status"] == "finished"


def test_a_site_whose_fork_server_has_ended_reports_nothing() -> None:
    orphan = """
import os, sys
from flowrl.machine.child_process import end_with_forking_process
from flowrl.runtime.sites.fork_server import ServerReport
with ServerReport(int(sys.argv[1])).failure():
    end_with_forking_process(os.getpid())  # which is not its parent
"""
    report, writing = os.pipe()
    with os.fdopen(report, "rb") as reader:
        command = [sys.executable, "-c", orphan, str(writing)]
        done = subprocess.run(command, pass_fds=[writing], timeout=60, check=False)
        os.close(writing)
        assert (done.returncode, reader.read()) == (1, b"")


@pytest.mark.parametrize("placement", ["processes", "c=process"])
def test_a_type_of_the_script_is_refused_before_anything_starts(
    placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "MyNode", FailingNode, raising=False)
    checked = check(load_data(toy_graph({"c": "Source", "f": "__main__:MyNode"}, ["c -> f"])))
    with pytest.raises(UsageError) as raised:
        Run(checked, placement=placement, out=tmp_path / "r")
    assert str(raised.value) == (
        "nodes.f: '__main__:MyNode' is in the script that was started, and sites in other processes cannot import "
        "it; move it to a module beside the script, and name it 'my_module:MyNode'"
    )
    run = Run(checked, placement="threads", out=tmp_path / "r", limits=Limits(rounds=1))
    assert run.run().status == "finished"


def test_a_graph_that_another_process_reads_differently_fails_with_its_problems() -> None:
    config = {"title": "g", "graph": "nodes: {c: {type: 'no_such_module:Collector'}}\nedges: []\n"}
    with pytest.raises(GraphError, match="there is no module 'no_such_module'"):
        read_graph(config)
