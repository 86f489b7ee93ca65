"""Envs of gymnasium and gym, by id and by import path."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.legacy_gym import LegacyGym
from tests.nodes.toy_envs import CountingEnv

COUNTING = "tests.nodes.toy_envs:CountingEnv"
call_program = partial(subprocess.call, ["true"])


def make_nothing() -> None:
    """Make no env."""


class NoEnv:
    def __init__(self) -> None:
        raise AssertionError("a class that is no env is never made")


def test_a_registered_id_is_made_without_the_checker() -> None:
    env = Gymnasium(id="CartPole-v1").make(0)
    assert env.spec.max_episode_steps == 500
    assert "PassiveEnvChecker" not in str(env)


def test_the_columns_come_from_one_env_that_is_then_closed(monkeypatch: Any) -> None:
    made: list[CountingEnv] = []
    part = Gymnasium(id=COUNTING)
    monkeypatch.setattr(part, "make", lambda index: made.append(CountingEnv()) or made[-1])
    assert part.spec() is part.spec()
    assert [env.closed for env in made] == [True]


@pytest.mark.parametrize("id", ["CartPole-v1", COUNTING])
def test_an_episode_limit_truncates(id: str) -> None:
    kwargs = {"length": 9} if id == COUNTING else {}
    env = Gymnasium(id=id, kwargs=kwargs, max_episode_steps=3).make(0)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_arguments_reach_the_constructor() -> None:
    assert Gymnasium(id=COUNTING, kwargs={"length": 7}).make(0).length == 7
    assert Gymnasium(id="Pendulum-v1", kwargs={"g": 9.81}).make(0).unwrapped.g == 9.81


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("CartPol-v1", r"cannot make the env 'CartPol-v1'.*; did you mean 'CartPole-v1'"),
        ("Zzzzzzzzz-v0", r"cannot make the env 'Zzzzzzzzz-v0'.*; is its package installed\?"),
        (
            "no_such_module:Env-v0",
            r"cannot make the env 'no_such_module:Env-v0': there is no module 'no_such_module'; install",
        ),
        ("tests.nodes.envs.registered_envs:Mine-v7", r"did you mean '.*registered_envs:Mine-v0'"),
        (
            "Scripted-v0",
            r"is `package:Scripted-v0` \(other processes do not know what a script registers\)",
        ),
        ("Zzzzzzzzz-v0", r"module beside the graph registers is `package:Zzzzzzzzz-v0`"),
        ("no.such.module:Env", r"cannot import 'no.such.module'"),
        ("tests.nodes.toy_envs:Countin", r"'tests.nodes.toy_envs' has no 'Countin'"),
        (
            "toy_envs",
            r"cannot make the env 'toy_envs': .* a class of your own is `package.module:Name`",
        ),
        (
            "tests.nodes.envs.test_gymnasium:make_nothing",
            r"make_nothing' returns a NoneType, which has no 'observation_space'; an env is a sub",
        ),
        ("os:getpid", r"'os:getpid' belongs to Python's standard library; name a class or"),
        ("antigravity:Env-v0", r"'antigravity:Env-v0' belongs to Python's standard library"),
        (
            "tests.nodes.envs.test_gymnasium:call_program",
            r"'tests.nodes.envs.test_gymnasium:call_program' belongs to Python's standard library",
        ),
        (
            "tests.nodes.envs.test_gymnasium:NoEnv",
            r"test_gymnasium:NoEnv' is a class without the method 'reset'; name a subclass of gym",
        ),
        ("tests.nodes.envs.test_gymnasium:COUNTING", r"COUNTING' is a str, which is neither"),
    ],
)
def test_an_unknown_id_is_unsound_with_a_hint(id: str, message: str) -> None:
    with pytest.raises(UnsoundError, match=message) as error:
        Gymnasium(id=id).spec()
    assert error.value.key == "env.id"


def test_an_id_of_another_package_begins_with_its_module() -> None:
    obs, action = Gymnasium(id="tests.nodes.envs.registered_envs:Mine-v0").spec()
    assert obs == Gymnasium(id="CartPole-v1").spec()[0]
    assert action.n == 2


def test_the_error_of_a_missing_package_has_the_command_to_install_it(
    monkeypatch: Any,
) -> None:
    monkeypatch.setitem(sys.modules, "gym", None)  # as if it were not installed
    with pytest.raises(
        UnsoundError, match=r"'gym' is not installed; pip install 'gym>=0.21,<0.27'"
    ):
        LegacyGym(id="CartPole-v1").make(0)


class OldCounting:
    """The interface of gym before 0.26: four results of a step, one of a reset, and `seed`."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, cut: bool = False) -> None:
        self.cut, self.seeded = cut, None

    def seed(self, seed: int) -> None:
        self.seeded = seed

    def reset(self) -> Any:
        self.t = 0
        return np.zeros(1, np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, dict]:
        self.t += 1
        done = self.t == 2
        info = {"TimeLimit.truncated": True} if done and self.cut else {}
        return np.full(1, self.t, np.float32), 1.0, done, info

    def close(self) -> None:
        pass


def install_gym(module: ModuleType, monkeypatch: Any, env: Any = OldCounting) -> None:
    """Install a package 'gym' with one env."""

    def make(id: str, max_episode_steps: int | None = None, **kwargs: Any) -> Any:
        if id != "Old-v0":
            raise module.error.Error(f"no env {id}")
        return env(**kwargs)

    module.make = make
    module.error = SimpleNamespace(Error=type("Error", (Exception,), {}))
    module.envs = SimpleNamespace(registry={"Old-v0": SimpleNamespace(id="Old-v0")})
    monkeypatch.setitem(sys.modules, "gym", module)


@pytest.fixture
def gym(monkeypatch: Any) -> ModuleType:
    module = ModuleType("gym")
    install_gym(module, monkeypatch)
    return module


@pytest.mark.parametrize(("cut", "ends"), [(False, (True, False)), (True, (False, True))])
def test_done_of_the_old_interface_becomes_terminated_or_truncated(
    gym: Any, cut: bool, ends: tuple
) -> None:
    env = LegacyGym(id="Old-v0", kwargs={"cut": cut}).make(0)
    obs, info = env.reset(seed=5)
    assert (obs.tolist(), info) == ([0.0], {})
    assert env.step(0)[2:4] == (False, False)
    assert env.step(0)[2:4] == ends


def test_an_old_env_is_seeded_by_its_seed_method(gym: Any) -> None:
    env = LegacyGym(id="Old-v0").make(0)
    env.reset(seed=5)
    assert env._env.seeded == 5


def test_the_newer_interface_of_gym_is_not_changed(gym: Any, monkeypatch: Any) -> None:
    install_gym(gym, monkeypatch, CountingEnv)
    env = LegacyGym(id="Old-v0", kwargs={"length": 2, "ends": "cut"}).make(0)
    obs, _ = env.reset(seed=7)
    assert obs.tolist() == [7.0, 0.0]
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]


def test_an_old_env_can_have_an_episode_limit() -> None:
    env = LegacyGym(id=f"{__name__}:OldCounting", max_episode_steps=1).make(0)
    env.reset(seed=1)
    assert env.step(0)[2:4] == (False, True)


def test_an_unknown_id_of_gym_names_the_nearest(gym: Any) -> None:
    with pytest.raises(
        UnsoundError, match=r"cannot make the env 'Odl-v0': .*; did you mean 'Old-v0'"
    ):
        LegacyGym(id="Odl-v0").make(0)


def test_a_manager_steps_old_envs_like_new_ones(gym: Any) -> None:
    envs = SerialEnvManager(env=LegacyGym(id="Old-v0"), count=2)
    envs.reset()
    envs.advance(np.zeros(2, np.int64))
    steps = envs.advance(np.zeros(2, np.int64))
    assert steps.terminated.tolist() == [True, True]
    assert steps.next_obs.tolist() == [[2.0], [2.0]]
    assert steps.obs.tolist() == [[0.0], [0.0]]
