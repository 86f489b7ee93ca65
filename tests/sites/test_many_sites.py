"""Runs on many sites start, fire and end like runs on few sites, in time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.checks.ordering import exclusive_services
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runtime.sites.coordinator import Coordinator
from tests.quick_selection import exhaustive_except
from tests.sites.run_comparison import read_results, run_graph
from tests.toys.toy_runs import toy_graph

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

BRANCHES = 3
MIXED = ("process", "thread")
START_S, STOP_S = 120.0, 60.0  # many times what two cores need, unless the time grows faster


def tree_graph(sites: int) -> dict[str, Any]:
    """Return a graph of a source, a learner, and a tree of relays."""
    names = ["source", *(f"n{at:03d}" for at in range(1, sites - 1))]
    above = {name: names[at // BRANCHES] for at, name in enumerate(names[1:])}
    kinds = {name: "Relay" if name in above.values() else "Drain" for name in above}
    edges = ["source -> learner", *(f"{parent} -> {name}" for name, parent in above.items())]
    edges.append({"learner.weights -> source.weights": {"lag": 1}})
    return toy_graph({"source": "Source", "learner": "Learner", **kinds}, edges)


def each_apart(graph: dict[str, Any], *places: str) -> str:
    """Return a placement of each node on a site of its own, with these kinds in turn."""
    return ",".join(f"{name}={places[at % len(places)]}" for at, name in enumerate(graph["nodes"]))


def same_as_serial(sites: int, folder: Path, *places: str, rounds: int) -> tuple[float, float]:
    """Compare a run on many sites with a serial run; return the times until the first firing and until the end."""
    graph, limits = tree_graph(sites), {"rounds": rounds}
    serial = run_graph(graph, "serial", folder / "serial", **limits)
    placed = each_apart(graph, *places)
    run = Run(
        check(load_data(graph)), placement=placed, out=folder / "placed", limits=Limits(**limits)
    )
    began_s = time.perf_counter()
    run.run()
    assert isinstance(run.executor, Coordinator)
    assert run.executor.began_s is not None
    assert run.executor.ended_s is not None
    assert read_results(folder / "placed") == serial
    left = {thread.name for thread in threading.enumerate()} & set(run.executor.sites.names)
    assert not left
    assert not sessions() & {*run.executor.sites.processes.sessions}
    return run.executor.began_s - began_s, time.perf_counter() - run.executor.ended_s


def sessions() -> set[int]:
    """Return the sessions of all processes."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            found.add(int(path.read_text().rpartition(")")[2].split()[3]))
    return found


@pytest.mark.slow
def test_forty_sites_have_the_results_of_one(tmp_path: Path) -> None:
    same_as_serial(40, tmp_path, "process", "thread", rounds=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "places", exhaustive_except([(MIXED,)], [MIXED, ("process",), ("thread",)])
)
def test_two_hundred_sites_start_and_end_in_time(places: tuple[str, ...], tmp_path: Path) -> None:
    start_s, stop_s = same_as_serial(200, tmp_path, *places, rounds=50)
    assert start_s < START_S
    assert stop_s < STOP_S


LIMITED = """
import resource, sys
from pathlib import Path
from tests.sites.run_comparison import run_graph
from tests.sites.test_many_sites import each_apart, tree_graph
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
graph = tree_graph(20)
print(run_graph(graph, each_apart(graph, "process", "thread"), Path(sys.argv[2]), rounds=3)["status"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hard", "end"), [(4096, "finished"), (128, "and 128 are allowed; raise that limit")]
)
def test_the_limit_of_open_files_is_raised_if_allowed(hard: int, end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(hard), str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert end in done.stdout + done.stderr


def test_exclusive_services_are_found_for_all_nodes() -> None:
    nodes = {
        "a": "ServiceCaller",
        "b": "ServiceCaller",
        "c": "Drain",
        "d": "Drain",
        "w": "CountingService",
        "v": "CountingService",
    }
    edges = ["a <-> w", "b <-> v", "a -> c", "b -> d"]
    owned = exclusive_services(check(load_data(toy_graph(nodes, edges))).graph)
    assert owned == {"a": ["w"], "b": ["v"], "c": [], "d": [], "w": [], "v": []}
