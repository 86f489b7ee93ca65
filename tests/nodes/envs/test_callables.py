"""Envs that are made by functions instead of an id."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.subprocess_env_managers import SyncSubprocessEnvManager
from flowrl.nodes.env_managers.thread_env_manager import ThreadEnvManager
from flowrl.nodes.env_managers.vector_env_manager import VectorEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.random import Random
from tests.nodes.env_managers.manager_kinds import steps_are_equal
from tests.nodes.toy_envs import CountingEnv

CARTPOLE = partial(gymnasium.make, "CartPole-v1", disable_env_checker=True)


def make_short_env() -> Any:
    return CountingEnv(length=2)


def play(envs: Any, steps: int = 30) -> list[Any]:
    """The first observations and the steps."""
    try:
        return [envs.reset(), *(envs.advance(np.zeros(3, np.int64)) for _ in range(steps))]
    finally:
        envs.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: SerialEnvManager(env=lambda: gymnasium.make("CartPole-v1"), count=3),
        lambda: ThreadEnvManager(env=lambda: gymnasium.make("CartPole-v1"), count=3),
        lambda: SerialEnvManager(env=[lambda: gymnasium.make("CartPole-v1") for _ in range(3)]),
        lambda: SyncSubprocessEnvManager(env=CARTPOLE, count=3),
    ],
    ids=["function", "in threads", "list", "partial in processes"],
)
def test_a_function_gives_the_same_steps_as_an_id(make: Any) -> None:
    named = SerialEnvManager(env=Gymnasium(id="CartPole-v1"), count=3)
    named.seed(5)
    envs = make()
    envs.seed(5)
    assert str(envs.spec()) == str(named.spec())
    first, *expected = play(named)
    own_first, *found = play(envs)
    np.testing.assert_array_equal(first, own_first)
    assert all(map(steps_are_equal, expected, found))


@pytest.mark.parametrize("kind", [SerialEnvManager, SyncSubprocessEnvManager])
def test_each_env_is_made_by_its_own_function(kind: Any) -> None:
    envs = kind(env=[make_short_env, CountingEnv, partial(CountingEnv, length=4)])
    envs.reset()
    lengths: dict[int, list[int]] = {0: [], 2: []}
    for _ in range(8):
        for episode in envs.advance(np.zeros(3, np.int64)).episodes:
            lengths.setdefault(episode.env_id, []).append(episode.length)
    envs.close()
    assert (lengths[0], lengths[2]) == ([2] * 4, [4] * 2)


def test_the_length_of_a_list_is_the_number_of_envs() -> None:
    assert SerialEnvManager(env=[make_short_env, make_short_env]).spec().count == 2
    with pytest.raises(ValueError, match="2 functions for 3 envs; give one for each"):
        SerialEnvManager(env=[make_short_env, make_short_env], count=3)


def test_an_evaluator_takes_a_function_too() -> None:
    spec = SerialEnvManager(env=CARTPOLE, count=1).spec()
    policy = Random(obs=spec.obs, action=spec.action)
    evaluator = Evaluator(env=CARTPOLE, policy=policy, seed=0)
    assert len(evaluator.eval(n_episode=3).returns) == 3


@pytest.mark.parametrize("maker", [lambda: CountingEnv(), partial(CountingEnv, length=object())])
def test_a_function_that_processes_cannot_import_is_refused_at_once(maker: Any) -> None:
    with pytest.raises(UnsoundError, match="another process"):
        SyncSubprocessEnvManager(env=maker, count=2)


def test_a_pool_needs_an_id() -> None:
    with pytest.raises(UnsoundError, match="a pool is made from an id"):
        VectorEnvManager(env=CARTPOLE, count=2)


def test_a_function_that_returns_no_env_is_refused() -> None:
    with pytest.raises(
        UnsoundError, match="the function returns a NoneType, which has no 'observation_sp"
    ):
        SerialEnvManager(env=lambda: None, count=2)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("CartPole-v1", "'CartPole-v1' does not describe an env; give Gymnasium"),
        ([], "a list does not describe an env"),
        (CountingEnv(), "a CountingEnv does not describe an env; .* a function that makes an env"),
    ],
)
def test_anything_else_is_refused_with_what_to_give(env: Any, message: str) -> None:
    with pytest.raises(UnsoundError, match=message):
        SerialEnvManager(env=env, count=2)


def test_a_function_that_calls_sys_exit_is_reported() -> None:
    def exit_program() -> Any:
        sys.exit("no licence")

    with pytest.raises(UnsoundError, match="the env cannot be made: SystemExit: no licence"):
        SerialEnvManager(env=exit_program, count=2)


def test_an_env_that_can_only_be_closed_after_a_reset_can_be_used() -> None:
    class Closing(CountingEnv):
        def close(self) -> None:
            self.seed += 0  # which a reset sets

    envs = SerialEnvManager(env=Closing, count=2)
    envs.reset()
    envs.close()


def test_a_function_that_raises_is_reported() -> None:
    def broken() -> Any:
        raise OSError("no simulator answers")

    with pytest.raises(
        UnsoundError, match="the env cannot be made: OSError: no simulator answers"
    ) as raised:
        SerialEnvManager(env=broken, count=2)
    line = broken.__code__.co_firstlineno + 1
    assert f"({__file__}, line {line}); correct its id" in str(raised.value)


def test_arguments_that_do_not_fit_are_reported_without_a_place() -> None:
    with pytest.raises(UnsoundError, match=r"the env cannot be made: TypeError: .*'nope'; correct"):
        SerialEnvManager(env=Gymnasium(id=f"{__name__}:CountingEnv", kwargs={"nope": 1}), count=1)


def test_the_crash_file_of_a_local_class_says_why_it_cannot_be_replayed() -> None:
    class Fails(CountingEnv):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("it fell over")

    envs = SerialEnvManager(env=Fails, count=1)
    envs.reset()
    with pytest.raises(EnvError, match="it fell over") as raised:
        envs.advance(np.zeros(1, np.int64))
    assert "cannot be made again" in next(iter(raised.value.files.values()))


def test_a_policy_that_needs_weights_is_not_evaluated_without() -> None:
    spec = SerialEnvManager(env=CARTPOLE, count=1).spec()
    evaluator = Evaluator(env=CARTPOLE, policy=Dqn(obs=spec.obs, action=spec.action), seed=0)
    with pytest.raises(ValueError, match=r"Dqn needs weights to act.*`learner\.state\(\)`"):
        evaluator.eval()
