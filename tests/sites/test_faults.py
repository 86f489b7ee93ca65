"""Whatever goes wrong, a run on several sites ends in time, says why, and leaves nothing behind."""

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
from flowrl.runtime.sites.launched_sites import SiteLost
from tests.sites.faults import ENDS_S, ROOT, killed_graph, killed_once, running
from tests.toys.running import tree

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")

LONG_ROUNDS = 10**6
slow = pytest.mark.slow
OTHERS = ("x=process", "threads", "c=process,x=thread")
PLACES = ("processes", *(pytest.param(place, marks=slow) for place in OTHERS))


def faulty(how: str, when: str = "fire", **limits: Any) -> dict[str, Any]:
    """A graph with a node that goes wrong, and others that go on for long."""
    nodes = {
        "c": "Source",
        "s": "tests.sites.fault_nodes:Sleepy",
        "x": {"type": "tests.sites.fault_nodes:Faulty", "how": how, "when": when},
        "l": "Learner",
    }
    edges = ["c -> s, x, l", "l.weights -> c.weights"]
    return tree(nodes, edges, limits=limits or {"rounds": LONG_ROUNDS})


@pytest.mark.parametrize("placement", PLACES)
def test_a_node_that_raises_ends_the_run_with_its_error(placement: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", faulty("raises"), placement=placement) as run:
        end = run.ended(60)
    assert end.status == 1
    assert end.err.endswith("flowrl: node 'x', firing 2 (round 2): RuntimeError: meant to fail\n")
    assert end.told["status"] == "failed"
    assert "meant to fail" in (run.run / "error.txt").read_text()


@pytest.mark.parametrize("when", ["fire", pytest.param("setup", marks=slow)])
def test_a_node_that_calls_sys_exit_has_failed(when: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", faulty("exits", when)) as run:
        end = run.ended(60)
    doing = "firing 2 (round 2)" if when == "fire" else "being made"
    assert end.status == 1
    assert end.err.endswith(f"flowrl: node 'x', {doing}: SystemExit: 7\n")


@pytest.mark.parametrize(
    ("how", "why"), [("leaves", "ended with status 7"), ("crashes", "was killed by SIGSEGV")]
)
@pytest.mark.parametrize("when", ["fire", pytest.param("setup", marks=slow)])
def test_a_process_that_ends_on_its_own_is_named(
    how: str, why: str, when: str, tmp_path: Path
) -> None:
    with running(tmp_path / "run", faulty(how, when)) as run:
        end = run.ended(60)
    assert end.status == 1
    *traceback, told = end.err.splitlines()
    assert told == f"flowrl: site 'process:x' has ended: its process {why}"
    assert any("in fault" in line for line in traceback) == (how == "crashes")


@slow
def test_a_node_that_hangs_while_it_closes_holds_nobody_up_for_long(tmp_path: Path) -> None:
    graph = faulty("hangs", "close", rounds=3)
    with running(tmp_path / "run", graph) as run:
        end = run.ended(60)
    assert end.told["train_iters"] == 3
    assert end.told["happened"] == ["site process:x did not close its nodes within 4 s"]


# asked to stop


@pytest.mark.parametrize("placement", ["processes", pytest.param("threads", marks=slow)])
@pytest.mark.parametrize("name", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=slow)])
def test_a_first_signal_takes_the_next_cut(
    name: signal.Signals, placement: str, tmp_path: Path
) -> None:
    with running(tmp_path / "run", faulty("nothing"), placement=placement) as run:
        run.until_faulty()
        run.process.send_signal(name)
        end = run.ended()
    assert (end.status, end.told["status"]) == (130, "interrupted")
    assert end.told["train_iters"] > 0
    assert f"--train-iters {end.told['train_iters']}" in end.told["repeat"]


@pytest.mark.parametrize("placement", ["processes", pytest.param("threads", marks=slow)])
def test_a_second_signal_stops_at_once_though_a_node_hangs(placement: str, tmp_path: Path) -> None:
    graph = faulty("hangs")
    with running(tmp_path / "run", graph, placement=placement, told="--no-recover") as run:
        run.until_faulty()
        run.process.send_signal(signal.SIGINT)
        assert run.process.stderr is not None
        assert "Ctrl-C again stops at once" in run.process.stderr.readline()
        run.process.send_signal(signal.SIGINT)
        end = run.ended()
    assert end.status == 130
    assert "interrupted: stopped at once\n" in end.out


def test_a_run_that_is_meant_to_end_does_not_wait_for_a_node_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runtime.sites.coordinator.STUCK_S", 0.5)
    checked = check(load_data(faulty("hangs")))
    run = Run(checked, placement="processes", out=tmp_path / "r", limits=Limits(time_s=0.2))
    what = "site 'process:x' did not reach the cut, and reported nothing for 0.5 s"
    with pytest.raises(SiteLost, match=what):
        run.run()


@slow
def test_a_signal_while_sites_are_made_stops_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "run", faulty("hangs", "setup")) as run:
        run.until("c", "graph.yaml")
        while len(run.others()) < 4:
            time.sleep(0.01)
        run.process.send_signal(signal.SIGINT)
        end = run.ended()
    assert (end.status, end.told["status"]) == (130, "interrupted")


# the coordinator


def test_with_the_coordinator_all_end_and_the_next_run_sweeps(tmp_path: Path) -> None:
    with running(tmp_path / "run", faulty("nothing")) as run:
        run.until_faulty()
        assert run.others()
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + ENDS_S
        while run.others():
            assert time.monotonic() < deadline, run.left()
            time.sleep(0.01)
        [left] = run.tmp.glob(f"{FOLDER_PREFIX}*")
        assert left.stat().st_mode & 0o777 == 0o700
        words = [sys.executable, "-m", "flowrl", "run", "g.yaml", "--placement", "processes"]
        env = {**os.environ, "TMPDIR": str(run.tmp), "PYTHONPATH": str(ROOT)}
        more = ["--out", "again", "--train-iters", "2", "--quiet"]
        subprocess.run([*words, *more], cwd=run.folder, env=env, check=True)
        assert run.left() == []


@pytest.mark.parametrize("closed", ["0 1 2", *(pytest.param(n, marks=slow) for n in "12")])
def test_closed_standard_streams_are_no_error(closed: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", faulty("nothing", rounds=5), closed=closed) as run:
        end = run.ended(60)
    assert end.status == 0
    assert json.loads((run.run / "summary.json").read_text())["status"] == "finished"


def test_a_reader_that_goes_away_ends_the_run(tmp_path: Path) -> None:
    graph = tree(
        {"c": "Source", "p": "tests.runtime.start_nodes:Prints", "l": "Learner"}, ["c -> p, l"]
    )
    with running(tmp_path / "run", graph) as run:
        assert run.process.stderr is not None
        assert run.process.stderr.readline() == "printed by a node\n"
        run.process.stderr.close()
        run.process.stderr = None
        run.process.wait(ENDS_S)
        assert run.left() == []
    assert run.process.returncode == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A disk of its own, of a megabyte."""
    at, mount = tmp_path / "disk", shutil.which("mount")
    at.mkdir()
    if mount is None:
        pytest.skip("there is no mount command here")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "flowrl-test", str(at)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    yield at
    subprocess.run(["umount", "-l", str(at)], capture_output=True, check=False)


def test_a_full_disk_ends_the_run(small_disk: Path, tmp_path: Path) -> None:
    nodes = {"c": "Source", "t": "tests.sites.fault_nodes:Chatty", "l": "Learner"}
    out = str(small_disk / "r")
    with running(tmp_path / "run", tree(nodes, ["c -> t, l"]), "--out", out) as run:
        end = run.ended(60)
    assert end.status == 1
    what = "cannot be written: No space left on device; free some space, or choose another --out"
    assert end.err == f"flowrl: {out}: {what}\n"


# killing


def killings(rounds: int, seed: int, folder: Path) -> Counter[str]:
    """Processes killed at random moments."""
    draw = random.Random(seed)
    return Counter(killed_once(folder / str(number), draw) for number in range(rounds))


def test_a_killed_process_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with running(tmp_path / "run", killed_graph() | {"limits": {"rounds": LONG_ROUNDS}}) as run:
        run.until("return_mean")
        victim = max(run.others())
        os.kill(victim, signal.SIGKILL)
        end = run.ended()
    assert (end.status, end.took_s < ENDS_S) == (1, True)
    assert end.err.startswith("flowrl: site 'process:")
    assert end.err.endswith("' has ended: its process was killed by SIGKILL\n")


@slow
def test_a_killed_server_takes_its_sites_along_and_is_named(tmp_path: Path) -> None:
    with running(tmp_path / "run", killed_graph() | {"limits": {"rounds": LONG_ROUNDS}}) as run:
        run.until("return_mean")
        os.kill(min(run.others()), signal.SIGKILL)
        end = run.ended()
    assert end.status == 1
    assert end.err.endswith("has ended: the process that forked it was killed by SIGKILL\n")


@slow
def test_thirty_killings_at_random_moments(tmp_path: Path) -> None:
    """A hundred: `python -m tests.sites.faults`."""
    assert killings(30, int(time.time()), tmp_path)["killed"] >= 15
