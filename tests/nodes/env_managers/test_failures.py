"""Envs that fail are restarted, their trajectories are dropped and counted, and other envs are not affected."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.nodes.env_managers.crash_files import replay_crash_file
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.thread_env_manager import ThreadEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from tests.nodes.env_managers.failing_envs import RESET_FAULTS, STEP_FAULTS
from tests.nodes.env_managers.manager_kinds import KINDS, open_manager
from tests.nodes.env_managers.transition_checker import TransitionChecker

FAILING = "tests.nodes.env_managers.failing_envs:FaultyEnv"
UNREPRODUCIBLE = "tests.nodes.env_managers.unreproducible_envs"
kinds = pytest.mark.parametrize("kind", KINDS)
processes = pytest.mark.parametrize("kind", ["sync", "sync, pre-reset", "async, received by id"])
isolating = pytest.mark.parametrize("kind", ["sync", "sync, pre-reset", "thread"])


def failing(kind: str, *faults: str, count: int = 3, **params: Any) -> Any:
    given = {"max_retry": 10, "retry_waiting_time_s": 0.0, "probability": 0.3, **params}
    return open_manager(kind, FAILING, count=count, faults=faults, **given)


def test_the_memory_of_threads_cannot_be_limited() -> None:
    what = r"ThreadEnvManager.max_worker_bytes is 1000; leave it out \(none: the memory of one thread is not known\)"
    with pytest.raises(ValueError, match=what):
        ThreadEnvManager(env=Gymnasium(id=FAILING), max_worker_bytes=1000)


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("retry_type", ["reset", "renew"])
def test_failed_envs_are_restarted_and_all_kept_transitions_are_correct(
    kind: str, retry_type: str
) -> None:
    with failing(kind, *STEP_FAULTS, *RESET_FAULTS, retry_type=retry_type) as envs:
        checker = TransitionChecker(envs)
        checker.play(60)
        checker.check_counts()
        assert envs.failures.dropped_trajectories > 0
        assert envs.failures.replaced_workers == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "serial" and "pre-reset" not in k])
def test_the_same_failures_have_the_same_consequences_in_every_kind(
    kind: str,
) -> None:
    with failing("serial", *STEP_FAULTS) as base, failing(kind, *STEP_FAULTS) as other:
        one, two = TransitionChecker(base), TransitionChecker(other)
        one.play(40), two.play(40)
        assert one.kept == two.kept
        assert base.failures == other.failures


@pytest.mark.slow
@isolating
def test_a_keyboard_interrupt_of_an_env_is_its_failure_where_it_has_a_worker(kind: str) -> None:
    with failing(kind, "interrupt") as envs:
        TransitionChecker(envs).play(60)
        assert envs.failures.failures > 0
        assert envs.failures.replaced_workers == 0
    with (
        failing(kind, "interrupt", probability=1.0, max_retry=1, retry_waiting_time_s=0.1) as envs,
        pytest.raises(EnvError, match="step raised KeyboardInterrupt: the simulator handles"),
    ):
        TransitionChecker(envs).play(60)


@pytest.mark.slow
@processes
@pytest.mark.parametrize("fault", ["exit", "sys.exit", "kill", "segfault"])
def test_a_worker_that_ends_is_replaced_and_its_other_envs_continue(kind: str, fault: str) -> None:
    with failing(kind, fault, probability=0.06, envs_per_worker=3) as envs:
        checker = TransitionChecker(envs)
        checker.play(25)
        checker.check_counts()
        assert envs.failures.replaced_workers > 0
        assert envs.failures.dropped_trajectories == envs.failures.failures > 0


@pytest.mark.slow
@isolating
def test_an_env_that_hangs_has_failed_at_its_deadline(kind: str) -> None:
    limits = {"step_timeout_s": 0.3, "reset_timeout_s": 0.3}
    with failing(kind, "hang", "reset hangs", probability=0.1, **limits) as envs:
        checker = TransitionChecker(envs)
        checker.play(30)
        checker.check_counts()
        assert envs.failures.replaced_workers > 0


@pytest.mark.slow
@processes
def test_a_worker_that_is_killed_from_outside_changes_no_transition(kind: str) -> None:
    with (
        open_manager("serial", FAILING, count=4) as base,
        open_manager(kind, FAILING, count=4) as envs,
    ):
        one, two = TransitionChecker(base), TransitionChecker(envs)
        for _ in range(4):
            one.play(6)
            two.play(6)
            for worker in envs.pool.workers[::2]:
                os.kill(worker.pid, signal.SIGKILL)
        one.play(6), two.play(6)
        assert one.kept == two.kept
        assert envs.failures.replaced_workers > 0
        assert envs.failures.restored_envs > 0
        assert envs.failures.dropped_trajectories == 0


def test_an_env_that_ends_two_workers_has_failed_and_its_neighbours_continue(
    tmp_path: Path,
) -> None:
    """It ends one worker in its fifth step, and the next one while the envs are replayed."""
    kills = str(tmp_path / "kills")
    Path(kills).write_text("0")
    with open_manager(
        "sync", f"{UNREPRODUCIBLE}:KilledTwice", kills=kills, envs_per_worker=3, max_retry=2
    ) as envs:
        first = envs.reset()
        steps = [envs.advance(np.zeros(3, np.int64)) for _ in range(9)]
        assert [k for k, step in enumerate(steps) if len(step.failed)] == [4]
        (failed,) = steps[4].failed
        others = [index for index in range(3) if index != failed]
        for step in steps:
            assert (step.obs[others, 0] == first[others, 0]).all()
        assert steps[-1].obs[others, 1].tolist() == [9, 9]
        assert (envs.failures.failures, envs.failures.restored_envs) == (1, 2)


@pytest.mark.slow
def test_envs_that_cannot_be_replayed_after_their_worker_died_fail_their_next_step(
    tmp_path: Path,
) -> None:
    """Also for the second time, while no step is pending."""
    mark = tmp_path / "mark"
    params = {"mark": str(mark), "max_retry": 5, "retry_waiting_time_s": 0.0}
    with open_manager("sync", f"{UNREPRODUCIBLE}:ChangedObservation", **params) as envs:
        envs.reset()
        for replaced in (1, 2):
            assert list(envs.advance(np.zeros(3, np.int64)).failed) == []
            mark.unlink() if mark.exists() else mark.touch()
            for worker in envs.pool.workers:
                os.kill(worker.pid, signal.SIGKILL)
            while envs.failures.replaced_workers < replaced * len(envs.pool.workers):
                envs.pool.check_workers()
            assert list(envs.advance(np.zeros(3, np.int64)).failed) == [0, 1, 2]


def test_excessive_output_of_a_worker_is_dropped() -> None:
    with failing("sync", "flood", probability=1.0, at=1, envs_per_worker=3) as envs:
        checker, pool = TransitionChecker(envs), envs.pool
        while pool.workers[0].output_bytes() <= 16 << 20 and not envs.failures.dropped_output_bytes:
            checker.play(1)
        pool.check_workers()
        assert envs.failures.dropped_output_bytes > 16 << 20
        assert pool.workers[0].output_bytes() < 16 << 20


@pytest.mark.slow
@pytest.mark.real_processes
def test_replacing_a_worker_that_grew_too_large_changes_no_transition() -> None:
    with (
        open_manager("serial", FAILING) as base,
        open_manager("sync", FAILING, max_worker_bytes=1) as envs,
    ):
        one, two = TransitionChecker(base), TransitionChecker(envs)
        one.play(5), two.play(5)
        envs.pool.check_memory()
        one.play(5), two.play(5)
        assert one.kept == two.kept
        assert envs.failures.replaced_workers >= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "sync"])
def test_a_failure_without_an_attempt_left_writes_a_crash_file_that_fails_again(
    kind: str, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        failing(kind, "raise", probability=1.0, max_retry=3) as envs,
        pytest.raises(EnvError, match="the simulator fell over") as raised,
    ):
        TransitionChecker(envs).play(20)
    (path,) = raised.value.save(tmp_path)
    assert path.name == f"crash-envs-{raised.value.index}.json"
    assert replay_crash_file(str(path))
    output = capfd.readouterr()
    assert "it failed again: ZeroDivisionError: the simulator fell over" in output.out
    assert "in raise_error" in output.err


def test_a_parameter_of_retries_without_retries_is_refused() -> None:
    words = "`retry_type` has no effect, because a failed env is not restarted; give `max_retry`"
    with pytest.raises(ValueError, match=words):
        SerialEnvManager.Config(retry_type="renew")


@pytest.mark.slow
@pytest.mark.real_processes
def test_the_error_of_an_env_that_ended_its_worker_says_how() -> None:
    with (
        failing(
            "sync", "segfault", probability=1.0, count=1, max_retry=1, retry_waiting_time_s=0.1
        ) as envs,
        pytest.raises(EnvError, match="killed by SIGSEGV") as raised,
    ):
        TransitionChecker(envs).play(20)
    assert "Segmentation fault" in "".join(raised.value.files.values())


@pytest.mark.slow
@pytest.mark.real_processes
def test_the_error_of_a_worker_that_cannot_start_shows_its_output() -> None:
    with (
        open_manager("sync", "tests.nodes.env_managers.failing_envs:CrashingEnv") as envs,
        pytest.raises(EnvError, match="ended with status 7") as raised,
    ):
        envs.reset()
    assert "I cannot live here" in "".join(raised.value.files.values())


def test_a_late_step_in_this_process_is_reported_while_it_runs_and_counted_afterwards(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open_manager(
        "serial", "tests.nodes.env_managers.failing_envs:SlowEnv", step_timeout_s=0.05
    ) as envs:
        envs.reset()
        envs.advance(np.array([0, 1, 0]))
        assert envs.failures.late == 1
    errors = capsys.readouterr().err
    assert "env 1: step has taken longer than 0.05 s" in errors
    assert "in step" in errors


@pytest.mark.slow
@pytest.mark.real_processes
def test_closing_a_manager_ends_its_processes() -> None:
    with open_manager("sync, one env per worker") as envs:
        envs.reset()
        pids = [worker.pid for worker in envs.pool.workers]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_workers_end_with_their_managers_process() -> None:
    program = (
        "from tests.nodes.env_managers.manager_kinds import open_manager\n"
        "with open_manager('sync', 'tests.nodes.env_managers.failing_envs:FaultyEnv', faults=['hang'], at=1) as envs:\n"
        "    envs.reset()\n"
        "    print(*(w.pid for w in envs.pool.workers), flush=True)\n"
        "    import numpy\n"
        "    envs.advance(numpy.zeros(3, int))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    deadline = time.monotonic() + 90
    while any(map(alive, pids)) and time.monotonic() < deadline:
        os.sched_yield()
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"  # it may be unreaped
    except FileNotFoundError:
        return False
