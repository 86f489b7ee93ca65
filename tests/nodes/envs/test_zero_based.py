"""Choices that an env does not count from 0 are shifted."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.utils.env_checker import check_env

from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from tests.nodes.env_managers.manager_kinds import open_manager, steps_are_equal

DIE = f"{__name__}:Die"


class Die(gymnasium.Env):
    """Observes a die, 1 to 6, and optionally a pair; the reward is the action: -1, 0 or 1."""

    action_space: Any = Discrete(3, start=-1)

    def __init__(self, nested: bool = False) -> None:
        pair = MultiDiscrete([2, 3], start=[5, 7])
        self.nested = nested
        self.observation_space = Discrete(6, start=1)
        if nested:
            real = Box(-1, 1, (2,), np.float32)
            self.observation_space = Dict(die=Discrete(6, start=1), more=Tuple([pair, real]))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.bet = action
        return self.observe(), float(action), False, False, {}

    def observe(self) -> Any:
        self.die = int(self.np_random.integers(1, 7))
        if not self.nested:
            return self.die
        return {"die": self.die, "more": (np.array([6, 9]), np.zeros(2, np.float32))}


class Levers(Die):
    action_space = MultiDiscrete([2, 2], start=[3, 4])

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self.observe(), float(action[0] * 10 + action[1]), False, False, {}


@pytest.mark.parametrize("env", [Gymnasium(id=DIE), Die], ids=["path", "function"])
def test_actions_and_observations_begin_at_0(env: Any) -> None:
    envs = SerialEnvManager(env=env, count=2)
    spec = envs.spec()
    assert (spec.obs.n, spec.action.n) == (6, 3)
    first = envs.reset()
    assert first.tolist() == [one.unwrapped.die - 1 for one in envs.local_envs.envs]
    steps = envs.advance(np.array([0, 2]))
    assert steps.reward.tolist() == [-1.0, 1.0]
    assert steps.obs.tolist() == [one.unwrapped.die - 1 for one in envs.local_envs.envs]


def test_each_of_several_choices_begins_at_0() -> None:
    envs = SerialEnvManager(env=Levers, count=1)
    envs.reset()
    assert envs.advance(np.array([[0, 0]])).reward.tolist() == [34.0]
    assert envs.advance(np.array([[1, 1]])).reward.tolist() == [45.0]


def test_leaves_of_nested_observations_begin_at_0() -> None:
    envs = SerialEnvManager(env=Gymnasium(id=DIE, kwargs={"nested": True}), count=1)
    obs = envs.reset()
    assert (obs["die"][0], obs["more/0"].tolist()) == (
        envs.local_envs.envs[0].unwrapped.die - 1,
        [[1, 2]],
    )
    assert envs.advance(np.array([1])).obs["more/1"].tolist() == [[0.0, 0.0]]


@pytest.mark.filterwarnings("ignore")  # style advice
@pytest.mark.parametrize("nested", [False, True])
def test_gymnasiums_checker_accepts_the_env(nested: bool) -> None:
    check_env(Gymnasium(id=DIE, kwargs={"nested": nested}).make(0), skip_render_check=True)


def test_an_env_that_begins_at_0_is_not_wrapped() -> None:
    assert type(Gymnasium(id="tests.nodes.toy_envs:CountingEnv").make(0)).__name__ == "CountingEnv"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_every_kind_of_manager_gives_the_same_steps(kind: str) -> None:
    with (
        open_manager("serial", DIE, nested=True) as base,
        open_manager(kind, DIE, nested=True) as other,
    ):
        np.testing.assert_array_equal(base.reset(), other.reset())
        for action in (0, 1, 2, 1):
            acts = np.full(3, action)
            assert steps_are_equal(base.advance(acts), other.advance(acts))
