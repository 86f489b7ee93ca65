"""Graphs of many sites: they start, run and end like those of few, and what a site costs does not grow with them."""

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
from tests.sites.comparing import facts_of, ran
from tests.toys.running import tree

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")

BRANCHES = 3
START_S, STOP_S = (
    60.0,
    20.0,
)  # many times what it takes on two cores: what grows faster takes longer


def tree_of(sites: int) -> dict[str, Any]:
    """A source, a learner, and relays that hand its tokens on to the leaves of a tree."""
    names = ["source", *(f"n{at:03d}" for at in range(1, sites - 1))]
    above = {name: names[at // BRANCHES] for at, name in enumerate(names[1:])}
    kinds = {name: "Relay" if name in above.values() else "Drain" for name in above}
    edges = ["source -> learner", *(f"{parent} -> {name}" for name, parent in above.items())]
    edges.append({"learner.weights -> source.weights": {"lag": 1}})
    return tree({"source": "Source", "learner": "Learner", **kinds}, edges)


def in_turn(graph: dict[str, Any], *places: str) -> str:
    """Each node in a site of its own, of these kinds."""
    return ",".join(f"{name}={places[at % len(places)]}" for at, name in enumerate(graph["nodes"]))


def same_as_serial(sites: int, folder: Path, *places: str, rounds: int) -> tuple[float, float]:
    """How long all sites took to be at work, and to end."""
    graph, limits = tree_of(sites), {"rounds": rounds}
    serial = ran(graph, "serial", folder / "serial", **limits)
    placed = in_turn(graph, *places)
    run = Run(
        check(load_data(graph)), placement=placed, out=folder / "placed", limits=Limits(**limits)
    )
    began_s = time.perf_counter()
    run.run()
    assert isinstance(run.executor, Coordinator)
    assert run.executor.began_s is not None
    assert run.executor.ended_s is not None
    assert facts_of(folder / "placed") == serial
    left = {thread.name for thread in threading.enumerate()} & set(run.executor.sites.names)
    assert not left
    assert not sessions() & {*run.executor.sites.processes.sessions}
    return run.executor.began_s - began_s, time.perf_counter() - run.executor.ended_s


def sessions() -> set[int]:
    """The sessions of all processes: a server and its sites are one of their own."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            found.add(int(path.read_text().rpartition(")")[2].split()[3]))
    return found


def test_forty_sites_in_threads_and_processes_do_what_one_does(tmp_path: Path) -> None:
    same_as_serial(40, tmp_path, "process", "thread", rounds=20)


@pytest.mark.slow
@pytest.mark.parametrize("places", [("process", "thread"), ("process",), ("thread",)])
def test_two_hundred_sites_start_run_and_end(places: tuple[str, ...], tmp_path: Path) -> None:
    start_s, stop_s = same_as_serial(200, tmp_path, *places, rounds=50)
    assert start_s < START_S
    assert stop_s < STOP_S


LIMITED = """
import resource, sys
from pathlib import Path
from tests.sites.comparing import ran
from tests.sites.test_many_sites import in_turn, tree_of
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
graph = tree_of(20)
print(ran(graph, in_turn(graph, "process", "thread"), Path(sys.argv[2]), rounds=3)["status"])
"""


@pytest.mark.parametrize(
    ("hard", "end"), [(4096, "finished"), (128, "and 128 are allowed; raise that limit")]
)
def test_sites_raise_the_limit_of_open_files_if_they_may(
    hard: int, end: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LIMITED, str(hard), str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert end in done.stdout + done.stderr


def test_services_are_told_from_others_once_for_all_nodes() -> None:
    nodes = {"a": "Bucket", "b": "Bucket", "c": "Drain", "d": "Drain", "w": "Well", "v": "Well"}
    edges = ["a <-> w", "b <-> v", "a -> c", "b -> d"]
    owned = exclusive_services(check(load_data(tree(nodes, edges))).graph)
    assert owned == {"a": ["w"], "b": ["v"], "c": [], "d": [], "w": [], "v": []}
