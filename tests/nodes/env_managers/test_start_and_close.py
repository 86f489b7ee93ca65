"""Starting and closing env managers: in bounded time, and without remains, also if something fails."""

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

from flowrl.nodes.env_managers import worker_env_manager
from flowrl.nodes.env_managers.env_error import EnvCloseError
from flowrl.nodes.env_managers.workers import worker_pool
from tests.nodes.env_managers.manager_kinds import KINDS, open_manager
from tests.nodes.env_managers.transition_checker import TransitionChecker

ENVS = "tests.nodes.env_managers.failing_envs"
FAILING = "tests.nodes.env_managers.failing_envs:FaultyEnv"
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.parametrize("kind", KINDS)
def test_envs_that_raise_when_closed_are_all_closed_and_the_first_is_reported(
    kind: str, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    with open_manager(kind, f"{ENVS}:EnvFailingToClose", closed=str(closed)) as envs:
        envs.reset()
        envs.advance(np.zeros(3, np.int64))
        with pytest.raises(
            EnvCloseError, match=r"^env 0: close raised RuntimeError: the window is gone"
        ):
            envs.close()
        spares = 3 if "pre-reset" in kind else 0  # of which some have begun
        assert 3 <= len(closed.read_text().splitlines()) <= 3 + spares
        envs.close()  # a second time, which does nothing


@pytest.mark.parametrize("kind", ["serial", "sync", "thread"])
def test_a_keyboard_interrupt_of_an_env_that_is_closed_is_an_error_of_its_manager(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_manager(kind, f"{ENVS}:EnvInterruptingClose") as envs:
        envs.reset()
        with pytest.raises(EnvCloseError, match=r"^env 0: close raised KeyboardInterrupt: the sim"):
            envs.close()
    assert capfd.readouterr().err == ""  # of the env that was made to learn its spaces


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_envs_that_hang_when_closed_are_discarded_in_bounded_time(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (worker_pool, worker_env_manager):
        monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.2)
    kwargs = {"closed": str(tmp_path / "closed"), "hangs": True}
    with open_manager(kind, f"{ENVS}:EnvFailingToClose", **kwargs) as envs:
        envs.reset()
        with pytest.raises(
            EnvCloseError, match=r"^env 0: close took longer than 0.2 s; its worker was"
        ):
            envs.close()


@pytest.mark.slow
@pytest.mark.real_processes
def test_a_worker_that_is_stopped_before_it_started_ends_by_itself() -> None:
    with open_manager("sync, one env per worker") as envs:
        envs.reset()
        pool, envs._pool = envs.pool, None
        pool.discard_worker(0)
        pool.respawn(0)
        started = pool.workers[0]
        assert pool.close() == []
        assert started._process.exit_status() == 0  # it was not killed


@pytest.mark.slow
def test_replacing_a_worker_that_was_suspended_while_asleep_changes_no_transition() -> None:
    limits = {"step_timeout_s": 0.3, "reset_timeout_s": 5.0}
    with open_manager("serial", FAILING) as base, open_manager("sync", FAILING, **limits) as envs:
        one, two = TransitionChecker(base), TransitionChecker(envs)
        one.play(5), two.play(5)
        pool = envs.pool
        while not pool.shared.asleep.all():
            os.sched_yield()  # until all sleep, so that none has begun the next command
        os.kill(pool.workers[0].pid, signal.SIGSTOP)
        one.play(5), two.play(5)
        assert one.kept == two.kept
        assert (envs.failures.replaced_workers, envs.failures.failures) == (1, 0)


@pytest.mark.slow
@linux
@pytest.mark.real_processes
def test_if_not_all_workers_can_be_started_none_remains() -> None:
    fds_before, children_before = open_fds(), child_pids()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open_manager("sync, one env per worker", count=40) as envs:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(fds_before) + 14, hard))
        try:
            with pytest.raises(
                OSError, match=r"env worker \d+ of 40 cannot be started: .*larger envs_"
            ):
                envs.reset()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        # Python keeps one for the memory that it maps.
        assert len(open_fds()) <= len(fds_before) + 1
        assert child_pids() == children_before


@pytest.mark.slow
@linux
@pytest.mark.real_processes
def test_workers_start_without_a_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with open_manager("sync", f"{ENVS}:PrintingEnv") as envs:
        envs.reset()
        for _ in range(3):
            envs.advance(np.zeros(3, np.int64))
        assert "hello from Python" in envs.pool.workers[0].output_tail()


@pytest.mark.slow
@linux
def test_processes_that_envs_started_end_when_the_managers_process_is_killed(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    program = (
        "from tests.nodes.env_managers.manager_kinds import open_manager\n"
        f"with open_manager('sync', '{ENVS}:EnvWithSimulator', pids={str(pids)!r}) as envs:\n"
        "    envs.reset()\n"
        "    print('started', flush=True)\n"
        "    input()\n"
    )
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
    simulators = [int(pid) for pid in pids.read_text().split()]
    deadline = time.monotonic() + 90
    while any(map(alive, simulators)) and time.monotonic() < deadline:
        os.sched_yield()
    remaining = [pid for pid in simulators if alive(pid)]
    for pid in remaining:
        os.kill(pid, signal.SIGKILL)
    assert (len(simulators) >= 3, remaining) == (True, [])


def open_fds() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def child_pids() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
