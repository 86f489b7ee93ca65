"""Every env of gymnasium's classic control, toy text and Box2D, under every kind of env manager."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.nodes.env_managers.manager_kinds import open_manager, steps_are_equal
from tests.quick_selection import exhaustive_except

FAMILIES = ("classic_control", "toy_text", "box2d")
IDS = sorted(
    id
    for id, spec in gymnasium.registry.items()
    if any(f"envs.{family}" in str(spec.entry_point) for family in FAMILIES)
)
STEPS = 1000
DEPENDS_ON_THE_PAST = {"BipedalWalker-v3"}  # a seeded reset does not clear all of its state
# In CI: discrete and continuous actions, text, and an engine of physics.
USUAL = ("CartPole-v1", "FrozenLake-v1", "LunarLander-v3", "Pendulum-v1")
ONE_THREAD = {"CarRacing-v3"}  # it draws with pygame, which has global state


def actions_for(space: Any, count: int, steps: int) -> list[np.ndarray]:
    """The same random actions in each call."""
    space.seed(0)
    return [np.array([space.sample() for _ in range(count)]) for _ in range(steps)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # about outdated envs
@pytest.mark.parametrize("id", exhaustive_except([(id,) for id in USUAL], IDS))
def test_all_kinds_of_managers_give_the_same_steps(id: str) -> None:
    env = gymnasium.make(id, disable_env_checker=True)
    count = 2
    action_sequence = actions_for(env.action_space, count, STEPS // count)
    env.close()
    with open_manager("serial", id, count=count) as base:
        first = base.reset()
        expected = [base.advance(actions) for actions in action_sequence]
    for kind in ("sync", "thread", "async, received by id", "sync, pre-reset"):
        if kind == "sync, pre-reset" and id in DEPENDS_ON_THE_PAST | ONE_THREAD:
            continue  # CarRacing takes as long as all others together
        shared = {"envs_per_worker": count} if kind == "thread" and id in ONE_THREAD else {}
        with open_manager(kind, id, count=count, **shared) as envs:
            np.testing.assert_array_equal(first, envs.reset())
            for actions, steps in zip(action_sequence, expected, strict=True):
                assert steps_are_equal(steps, envs.advance(actions))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "id", exhaustive_except([(id,) for id in USUAL], sorted({*IDS} - ONE_THREAD))
)
def test_the_asynchronous_manager_plays_without_failures(id: str) -> None:
    with open_manager("async, received by id", id, count=2) as envs:
        envs.reset()
        space = gymnasium.make(id, disable_env_checker=True).action_space
        ids, played = np.arange(2), 0
        while played < STEPS:
            envs.send(ids, np.array([space.sample() for _ in ids]))
            ids, steps = envs.recv()
            assert len(steps.obs) == len(ids) > 0
            played += len(ids)
        assert envs.failures.failures == 0
