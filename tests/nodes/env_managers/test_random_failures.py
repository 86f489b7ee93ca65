"""Envs that fail at random in every way at once: the run goes on, and every kept sample is right."""

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
TOLERANT = {
    "max_retry": 20,
    "retry_waiting_time_s": 0.001,
    "step_timeout_s": 0.4,
    "reset_timeout_s": 0.4,
}


def play(kind: str, episodes: int, faults: Any, probability: float, **params: Any) -> Any:
    """Play so many episodes, taking envs in whatever order they come."""
    params = {**TOLERANT, "faults": faults, "probability": probability, **params}
    with open_manager(kind, FAILING, count=ENVS, **params) as envs:
        follower = TransitionChecker(envs)
        pids = {worker.pid for worker in envs._crew.workers if worker.own_process}
        ids = np.arange(ENVS)
        while follower.episodes < episodes:
            envs.send(ids, follower.actions(ids))
            ids, steps = envs.recv(None if kind.startswith("async") else ids)
            follower.check(ids, steps)
            pids |= {worker.pid for worker in envs._crew.workers if worker.own_process}
        while envs._sent:  # what failed is counted before its row is received
            follower.check(*envs.recv())
        follower.check_counts()
    left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert left == []
    return envs.failures, follower


def check(failures: Any, episodes: int) -> None:
    """What was told adds up."""
    assert failures.dropped_trajectories > 0
    assert failures.failures >= failures.dropped_trajectories
    assert failures.replaced_workers > 0


@pytest.mark.parametrize("kind", ["sync", "async, received by id"])
def test_a_short_storm_is_weathered(kind: str) -> None:
    faults = STEP_FAULTS * 4 + RESET_FAULTS * 4 + PROCESS_FAULTS + ("hang",)
    failures, follower = play(kind, 300, faults, 0.1)
    check(failures, follower.episodes)


def test_threads_weather_all_that_does_not_end_the_process() -> None:
    faults = STEP_FAULTS * 6 + RESET_FAULTS * 6 + HANGS + ("sys.exit",)
    failures, follower = play("thread", 300, faults, 0.1)
    check(failures, follower.episodes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "sync, pre-reset", "async, received by id"])
def test_a_long_storm_is_weathered(kind: str) -> None:
    """10,000 episodes in all."""
    faults = STEP_FAULTS * 20 + RESET_FAULTS * 20 + PROCESS_FAULTS + HANGS
    failures, follower = play(kind, 3334, faults, 0.06)
    check(failures, follower.episodes)
