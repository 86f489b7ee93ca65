"""Child processes: their configuration, their end, and the end of their own children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flowrl.machine.child_process import ChildProcess, exit_text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

CHILD = """
import os, subprocess, sys, time
from flowrl.machine.child_process import begin_child

config = begin_child()
print(config["greeting"], repr(sys.stdin.read()), flush=True)
if config.get("starts"):
    simulator = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(simulator.pid, flush=True)
if "status" in config:
    os._exit(config["status"])
time.sleep(60)
"""
DEADLINE_S = 60.0


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a child, in a folder that only this test's processes import from."""
    (tmp_path / "some_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "some_child"


def read_lines(path: Path, number: int) -> list[str]:
    """Wait for the first lines that a child prints, and return them."""
    deadline = time.monotonic() + DEADLINE_S
    while len(found := path.read_text().splitlines()) < number:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def wait_until_dead(pid: int) -> bool:
    """Return whether a process ends before the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_child_reads_its_configuration_and_an_empty_input(module: str, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as output:
        child = ChildProcess(module, {"greeting": "hello", "status": 3}, output=output)
        assert child.wait(time.monotonic() + DEADLINE_S) == 3
        child.kill()
    assert child.exit_status() == 3
    assert (tmp_path / "out").read_text() == "hello ''\n"


def test_children_of_a_child_are_killed_with_it(module: str, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as output:
        child = ChildProcess(module, {"greeting": "hello", "starts": True}, output=output)
    _, simulator = read_lines(tmp_path / "out", 2)
    assert child.exit_status() is None
    child.kill()
    assert child.exit_status() == -signal.SIGKILL
    assert wait_until_dead(int(simulator))


def test_a_child_outlives_the_thread_that_started_it(module: str, tmp_path: Path) -> None:
    children = []
    with (tmp_path / "out").open("wb") as output:

        def start() -> None:
            children.append(ChildProcess(module, {"greeting": "hello"}, output=output))

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
    read_lines(tmp_path / "out", 1)
    time.sleep(0.1)
    assert children[0].exit_status() is None
    children[0].kill()


@pytest.mark.parametrize("forks", [False, True])
def test_a_child_ends_with_its_parent_even_if_a_fork_of_the_parent_lives(
    forks: bool, module: str, tmp_path: Path
) -> None:
    parent = f"""
import os, time
from flowrl.machine.child_process import ChildProcess
child = ChildProcess({module!r}, {{"greeting": "hello", "starts": True}}, output=1)
fork = os.fork() if {forks} else 1
if fork == 0:
    time.sleep(60)
print("child", child.pid, "fork", fork, flush=True)
time.sleep(60)
"""
    with (tmp_path / "out").open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", parent], stdout=output)
    found = read_lines(tmp_path / "out", 3)
    pids = next(line.split() for line in found if line.startswith("child"))
    simulator = next(line for line in found if line.isdigit())
    process.kill()
    process.wait()
    try:
        assert wait_until_dead(int(pids[1]))
        assert wait_until_dead(int(simulator))
    finally:
        if forks:
            os.kill(int(pids[3]), signal.SIGKILL)


def test_exit_statuses_are_described() -> None:
    assert exit_text(7) == "ended with status 7"
    assert exit_text(-11) == "was killed by SIGSEGV"
    assert exit_text(-45) == "was killed by signal 45"
