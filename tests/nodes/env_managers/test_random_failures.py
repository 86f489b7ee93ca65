"""Envs that fail at random in every way: the run continues, and every kept transition is correct."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tests.nodes.env_managers.failing_envs import HANGS, PROCESS_FAULTS, RESET_FAULTS, STEP_FAULTS
from tests.nodes.env_managers.manager_kinds import open_manager
from tests.nodes.env_managers.transition_checker import TransitionChecker

FAILING = "tests.nodes.env_managers.failing_envs:FaultyEnv"
ENVS = 6
RETRY_PARAMS = {
    "max_retry": 20,
    "retry_waiting_time_s": 0.001,
    "step_timeout_s": 0.4,
    "reset_timeout_s": 0.4,
}


def play(kind: str, episodes: int, faults: Any, probability: float, **params: Any) -> Any:
    """Play this many episodes, with envs in the order in which they are received; return counts and checker."""
    params = {**RETRY_PARAMS, "faults": faults, "probability": probability, **params}
    with open_manager(kind, FAILING, count=ENVS, **params) as envs:
        checker = TransitionChecker(envs)
        pids = {worker.pid for worker in envs.pool.workers if worker.is_process}
        ids = np.arange(ENVS)
        while checker.episodes < episodes:
            envs.send(ids, checker.actions(ids))
            ids, steps = envs.recv(None if kind.startswith("async") else ids)
            checker.check(ids, steps)
            pids |= {worker.pid for worker in envs.pool.workers if worker.is_process}
        while envs._sent:  # failures are counted before their rows are received
            checker.check(*envs.recv())
        checker.check_counts()
    remaining = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert remaining == []
    return envs.failures, checker


def check_failures(failures: Any) -> None:
    """Check that the counts agree with each other."""
    assert failures.dropped_trajectories > 0
    assert failures.failures >= failures.dropped_trajectories
    assert failures.replaced_workers > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async, received by id"])
def test_a_run_survives_failures_of_all_kinds(kind: str) -> None:
    faults = STEP_FAULTS * 4 + RESET_FAULTS * 4 + PROCESS_FAULTS + ("hang",)
    failures, _ = play(kind, 300, faults, 0.1)
    check_failures(failures)


@pytest.mark.slow
def test_threads_survive_all_failures_that_do_not_end_the_process() -> None:
    faults = STEP_FAULTS * 6 + RESET_FAULTS * 6 + HANGS + ("sys.exit",)
    failures, _ = play("thread", 300, faults, 0.1)
    check_failures(failures)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["sync", "sync, pre-reset", "async, received by id"])
def test_a_long_run_survives_failures_of_all_kinds(kind: str) -> None:
    """10,000 episodes in total."""
    faults = STEP_FAULTS * 20 + RESET_FAULTS * 20 + PROCESS_FAULTS + HANGS
    failures, _ = play(kind, 3334, faults, 0.06)
    check_failures(failures)
