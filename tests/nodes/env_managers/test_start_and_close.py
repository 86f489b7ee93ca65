"""However an env manager begins and ends: in bounded time, with nothing left, and told."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import flowrl.nodes.env_managers.worker_env_manager as worker_module
import flowrl.nodes.env_managers.workers.worker_pool as crew_module
from flowrl.nodes.env_managers.env_error import EnvCloseError
from tests.nodes.env_managers.manager_kinds import KINDS, open_manager
from tests.nodes.env_managers.transition_checker import TransitionChecker

STARTS = "tests.nodes.env_managers.failing_envs"
FAILING = "tests.nodes.env_managers.failing_envs:FaultyEnv"
pytestmark = pytest.mark.real_processes
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@pytest.mark.parametrize("kind", KINDS)
def test_envs_that_raise_when_they_are_closed_are_all_closed_and_one_is_told(
    kind: str, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    with open_manager(kind, f"{STARTS}:EnvFailingToClose", closed=str(closed)) as envs:
        envs.reset()
        envs.advance(np.zeros(3, np.int64))
        with pytest.raises(
            EnvCloseError, match=r"^env 0: close raised RuntimeError: the window is gone"
        ):
            envs.close()
        spares = 3 if "pre-reset" in kind else 0  # those that had begun by then
        assert 3 <= len(closed.read_text().splitlines()) <= 3 + spares
        envs.close()  # again: nothing is left to do


@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_envs_that_hang_when_they_are_closed_are_given_up_in_bounded_time_and_told(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (crew_module, worker_module):
        monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.2)
    told = {"closed": str(tmp_path / "closed"), "hangs": True}
    with open_manager(kind, f"{STARTS}:EnvFailingToClose", **told) as envs:
        envs.reset()
        with pytest.raises(
            EnvCloseError, match=r"^env 0: close took longer than 0.2 s; its worker was"
        ):
            envs.close()


def test_a_worker_that_is_sent_home_before_it_began_leaves_by_itself() -> None:
    with open_manager("sync, one env per worker") as envs:
        envs.reset()
        crew, envs._crew = envs._crew, None
        crew.give_up(0)
        crew.hire_again(0)
        started = crew.workers[0]
        assert crew.close() == []
        assert started._process.exit_status() == 0  # it was not ended


def test_a_worker_that_was_stopped_while_it_rested_is_replaced_and_nobody_notices() -> None:
    limits = {"step_timeout_s": 0.3, "reset_timeout_s": 5.0}
    with open_manager("serial", FAILING) as base, open_manager("sync", FAILING, **limits) as envs:
        one, two = TransitionChecker(base), TransitionChecker(envs)
        one.play(5), two.play(5)
        crew = envs._crew
        while not crew.board.rest.all():
            os.sched_yield()  # until all sleep: nobody has begun the order that comes
        os.kill(crew.workers[0].pid, signal.SIGSTOP)
        one.play(5), two.play(5)
        assert one.kept == two.kept
        assert (envs.failures.replaced_workers, envs.failures.failures) == (1, 0)


@linux
def test_workers_that_cannot_all_be_started_leave_nothing_behind() -> None:
    before, children_before = descriptors(), children()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open_manager("sync, one env per worker", count=40) as envs:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 40, hard))
        try:
            with pytest.raises(
                OSError, match=r"worker \d+ of 40 cannot be started: .*larger envs_"
            ):
                envs.reset()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(descriptors()) <= len(before) + 1  # Python's own, of the memory that it maps
        assert children() == children_before


@linux
def test_workers_need_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with open_manager("sync", f"{STARTS}:PrintingEnv") as envs:
        envs.reset()
        for _ in range(3):
            envs.advance(np.zeros(3, np.int64))
        assert "hello from Python" in envs._crew.workers[0].tail()


@linux
def test_what_envs_have_started_ends_when_the_managers_process_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = (
        "from tests.nodes.env_managers.manager_kinds import open_manager\n"
        f"with open_manager('sync', '{STARTS}:EnvWithSimulator', pids={str(pids)!r}) as envs:\n"
        "    envs.reset()\n"
        "    print('begun', flush=True)\n"
        "    input()\n"
    )
    words = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdout.readline() == b"begun\n"
        parent.kill()
    simulators = [int(pid) for pid in pids.read_text().split()]
    deadline = time.monotonic() + 10
    while any(map(alive, simulators)) and time.monotonic() < deadline:
        os.sched_yield()
    left = [pid for pid in simulators if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert (len(simulators) >= 3, left) == (True, [])


def descriptors() -> list[int]:
    """Those that are open here."""
    return [int(name) for name in os.listdir("/proc/self/fd")]


def children() -> set[str]:
    """This process's."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


def alive(pid: int) -> bool:
    """Whether it runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
