"""After a fault, a run on several sites ends in time, reports the cause, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowrl.channels.socket_folder import FOLDER_PREFIX
from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runtime.sites.site_failures import SiteLost
from tests.sites.faults import ENDS_S, ROOT, graph_to_kill, kill_once, start_run
from tests.toys.toy_runs import toy_graph

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

LONG_ROUNDS = 10**6
slow = pytest.mark.slow
OTHERS = ("x=process", "threads", "c=process,x=thread")
PLACES = ("processes", *(pytest.param(place, marks=slow) for place in OTHERS))


def faulty_graph(how: str, when: str = "fire", **limits: Any) -> dict[str, Any]:
    """Return a graph with a node that fails, and other nodes that fire for a long time."""
    nodes = {
        "c": "Source",
        "s": "tests.sites.fault_nodes:SleepingNode",
        "x": {"type": "tests.sites.fault_nodes:FaultyNode", "how": how, "when": when},
        "l": "Learner",
    }
    edges = ["c -> s, x, l", "l.weights -> c.weights"]
    return toy_graph(nodes, edges, limits=limits or {"rounds": LONG_ROUNDS})


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACES)
def test_a_node_that_raises_ends_the_run_with_its_error(placement: str, tmp_path: Path) -> None:
    with start_run(tmp_path / "run", faulty_graph("raises"), placement=placement) as run:
        end = run.wait_for_end(60)
    assert end.status == 1
    assert end.err.endswith("flowrl: node 'x', firing 2 (round 2): RuntimeError: meant to fail\n")
    assert end.summary["status"] == "failed"
    assert "meant to fail" in (run.run / "error.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["fire", pytest.param("setup", marks=slow)])
def test_a_node_that_calls_sys_exit_has_failed(when: str, tmp_path: Path) -> None:
    with start_run(tmp_path / "run", faulty_graph("exits", when)) as run:
        end = run.wait_for_end(60)
    doing = "firing 2 (round 2)" if when == "fire" else "being made"
    assert end.status == 1
    assert end.err.endswith(f"flowrl: node 'x', {doing}: SystemExit: 7\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"), [("leaves", "ended with status 7"), ("crashes", "was killed by SIGSEGV")]
)
@pytest.mark.parametrize("when", ["fire", pytest.param("setup", marks=slow)])
def test_a_process_that_ends_on_its_own_is_named(
    how: str, why: str, when: str, tmp_path: Path
) -> None:
    with start_run(tmp_path / "run", faulty_graph(how, when)) as run:
        end = run.wait_for_end(60)
    assert end.status == 1
    *traceback, message = end.err.splitlines()
    assert message == f"flowrl: site 'process:x' has ended: its process {why}"
    assert any("in fault" in line for line in traceback) == (how == "crashes")


@slow
def test_a_node_that_hangs_while_it_is_closed_ends_the_run_soon(tmp_path: Path) -> None:
    graph = faulty_graph("hangs", "close", rounds=3)
    with start_run(tmp_path / "run", graph) as run:
        end = run.wait_for_end(60)
    assert end.summary["train_iters"] == 3
    assert end.summary["happened"] == ["site process:x did not close its nodes within 4 s"]


# requests to stop


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["processes", pytest.param("threads", marks=slow)])
@pytest.mark.parametrize("name", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=slow)])
def test_the_first_signal_requests_a_cut(
    name: signal.Signals, placement: str, tmp_path: Path
) -> None:
    with start_run(tmp_path / "run", faulty_graph("nothing"), placement=placement) as run:
        run.wait_for_fault()
        run.process.send_signal(name)
        end = run.wait_for_end()
    assert (end.status, end.summary["status"]) == (130, "interrupted")
    assert end.summary["train_iters"] > 0
    assert f"--train-iters {end.summary['train_iters']}" in end.summary["repeat"]


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["processes", pytest.param("threads", marks=slow)])
def test_the_second_signal_stops_the_run_even_if_a_node_hangs(
    placement: str, tmp_path: Path
) -> None:
    graph = faulty_graph("hangs")
    with start_run(tmp_path / "run", graph, placement=placement, output="") as run:
        run.wait_for_fault()
        run.process.send_signal(signal.SIGINT)
        assert run.process.stderr is not None
        assert "Ctrl-C again stops at once" in run.process.stderr.readline()
        run.process.send_signal(signal.SIGINT)
        end = run.wait_for_end()
    assert end.status == 130
    assert "interrupted: stopped at once\n" in end.out


@pytest.mark.slow
def test_a_requested_cut_does_not_wait_for_a_node_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runtime.sites.coordinator.STUCK_S", 0.5)
    checked = check(load_data(faulty_graph("hangs")))
    run = Run(checked, placement="processes", out=tmp_path / "r", limits=Limits(time_s=0.2))
    what = "site 'process:x' did not reach the cut, and reported nothing for 0.5 s"
    with pytest.raises(SiteLost, match=what):
        run.run()


@slow
def test_a_signal_while_nodes_are_made_stops_the_run(tmp_path: Path) -> None:
    with start_run(tmp_path / "run", faulty_graph("hangs", "setup")) as run:
        run.wait_for_text("c", "graph.yaml")
        while len(run.child_pids()) < 4:
            time.sleep(0.01)
        run.process.send_signal(signal.SIGINT)
        end = run.wait_for_end()
    assert (end.status, end.summary["status"]) == (130, "interrupted")


# the coordinator


@pytest.mark.slow
def test_sites_end_with_the_coordinator_and_the_next_run_removes_the_socket_folder(
    tmp_path: Path,
) -> None:
    with start_run(tmp_path / "run", faulty_graph("nothing")) as run:
        run.wait_for_fault()
        assert run.child_pids()
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + ENDS_S
        while run.child_pids():
            assert time.monotonic() < deadline, run.leftovers()
            time.sleep(0.01)
        [left] = run.tmp.glob(f"{FOLDER_PREFIX}*")
        assert left.stat().st_mode & 0o777 == 0o700
        words = [sys.executable, "-m", "flowrl", "run", "g.yaml", "--placement", "processes"]
        env = {**os.environ, "TMPDIR": str(run.tmp), "PYTHONPATH": str(ROOT)}
        more = ["--out", "again", "--train-iters", "2", "--quiet"]
        subprocess.run([*words, *more], cwd=run.folder, env=env, check=True)
        assert run.leftovers() == []


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0 1 2", *(pytest.param(n, marks=slow) for n in "12")])
def test_closed_standard_streams_are_no_error(closed: str, tmp_path: Path) -> None:
    with start_run(tmp_path / "run", faulty_graph("nothing", rounds=5), closed=closed) as run:
        end = run.wait_for_end(60)
    assert end.status == 0
    assert json.loads((run.run / "summary.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_a_closed_pipe_of_standard_error_ends_the_run(tmp_path: Path) -> None:
    graph = toy_graph(
        {"c": "Source", "p": "tests.runtime.process_nodes:PrintingNode", "l": "Learner"},
        ["c -> p, l"],
    )
    with start_run(tmp_path / "run", graph) as run:
        assert run.process.stderr is not None
        assert run.process.stderr.readline() == "printed by a node\n"
        run.process.stderr.close()
        run.process.stderr = None
        run.process.wait(ENDS_S)
        assert run.leftovers() == []
    assert run.process.returncode == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """Mount a disk of one megabyte."""
    at, mount = tmp_path / "disk", shutil.which("mount")
    at.mkdir()
    if mount is None:
        pytest.skip("there is no mount command")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "flowrl-test", str(at)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    yield at
    subprocess.run(["umount", "-l", str(at)], capture_output=True, check=False)


@pytest.mark.slow
def test_a_full_disk_ends_the_run(small_disk: Path, tmp_path: Path) -> None:
    nodes = {"c": "Source", "t": "tests.sites.fault_nodes:VerboseNode", "l": "Learner"}
    out = str(small_disk / "r")
    with start_run(tmp_path / "run", toy_graph(nodes, ["c -> t, l"]), "--out", out) as run:
        end = run.wait_for_end(60)
    assert end.status == 1
    what = "cannot be written: No space left on device; free some space, or choose another --out"
    assert end.err == f"flowrl: {out}: {what}\n"


# killing


def count_kills(rounds: int, seed: int, folder: Path) -> Counter[str]:
    """Kill processes at random moments, and count what happened."""
    draw = random.Random(seed)
    return Counter(kill_once(folder / str(number), draw) for number in range(rounds))


@pytest.mark.slow
def test_a_killed_process_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with start_run(tmp_path / "run", graph_to_kill() | {"limits": {"rounds": LONG_ROUNDS}}) as run:
        run.wait_for_text("return_mean")
        victim = max(run.child_pids())
        os.kill(victim, signal.SIGKILL)
        end = run.wait_for_end()
    assert (end.status, end.took_s < ENDS_S) == (1, True)
    assert end.err.startswith("flowrl: site 'process:")
    assert end.err.endswith("' has ended: its process was killed by SIGKILL\n")


@slow
def test_sites_end_with_a_killed_fork_server_which_is_named(tmp_path: Path) -> None:
    with start_run(tmp_path / "run", graph_to_kill() | {"limits": {"rounds": LONG_ROUNDS}}) as run:
        run.wait_for_text("return_mean")
        os.kill(min(run.child_pids()), signal.SIGKILL)
        end = run.wait_for_end()
    assert end.status == 1
    assert end.err.endswith("has ended: the process that forked it was killed by SIGKILL\n")


@slow
def test_thirty_kills_at_random_moments(tmp_path: Path) -> None:
    """`python -m tests.sites.faults` kills a hundred."""
    found = count_kills(30, int(time.time()), tmp_path)
    assert found["killed"] + found["recovered"] >= 8  # a run may end first
