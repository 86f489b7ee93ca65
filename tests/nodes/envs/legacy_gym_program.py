"""A program that compares envs of the installed gym in an env manager with stepping them directly."""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import gym
import numpy as np
import pytest

from flowrl.api import load
from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.subprocess_env_managers import SyncSubprocessEnvManager
from flowrl.nodes.envs.legacy_gym import LegacyGym

ENVS, STEPS = 2, 260
IDS = {  # and how their episodes end with random actions
    "CartPole-v1": "terminated",
    "Pendulum-v1": "truncated",
    "MountainCar-v0": "truncated",
    "FrozenLake-v1": "terminated",
    "Taxi-v3": "truncated",
}


def actions(column: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    if column.n is not None:
        return list(rng.integers(column.n, size=(STEPS, ENVS)))
    return list(rng.uniform(-1, 1, (STEPS, ENVS, *column.shape)).astype(column.dtype))


def step_directly(id: str, seeds: Iterator[int], acts: list[Any]) -> list[Any]:
    """The steps of one env, as in gym's documentation."""
    known = inspect.signature(gym.make).parameters
    env = gym.make(id, **({"disable_env_checker": True} if "disable_env_checker" in known else {}))

    def reset() -> Any:
        if "seed" in inspect.signature(env.unwrapped.reset).parameters:
            return env.reset(seed=next(seeds))
        env.seed(next(seeds))
        return env.reset()

    obs, steps = reset(), []
    for action in acts:
        next_obs, reward, done, info = env.step(action if np.ndim(action) else int(action))
        truncated = bool(done and info.get("TimeLimit.truncated", False))
        obs = reset() if done else next_obs
        steps.append((next_obs, reward, done and not truncated, truncated, obs))
    env.close()
    return steps


def check_steps(id: str, ends: str) -> None:
    """Compare every step, and check that episodes ended in the expected way."""
    envs = SerialEnvManager(env=LegacyGym(id=id), count=ENVS, seed=3)
    envs.reset()
    acts = actions(envs.spec().action)
    twin = SerialEnvManager(env=LegacyGym(id=id), count=ENVS, seed=3)
    seeds = [[twin.statistics.start_episode(k) for _ in range(STEPS)] for k in range(ENVS)]
    expected = [step_directly(id, iter(seeds[k]), [a[k] for a in acts]) for k in range(ENVS)]
    ended = 0
    for t, action in enumerate(acts):
        steps = envs.advance(action)
        ended += int(getattr(steps, ends).sum())
        for k in range(ENVS):
            next_obs, reward, terminated, truncated, obs = expected[k][t]
            assert np.array_equal(steps.next_obs[k], np.asarray(next_obs, steps.obs.dtype)), (id, t)
            assert steps.reward[k] == np.float32(reward), (id, t)
            assert (steps.terminated[k], steps.truncated[k]) == (terminated, truncated), (id, t)
            assert np.array_equal(steps.obs[k], np.asarray(obs, steps.obs.dtype)), (id, t)
    assert ended >= ENVS, (id, ended)
    envs.close()


def check_workers() -> None:
    """Save a serial manager, and restore it in worker processes."""
    env = LegacyGym(id="CartPole-v1")
    envs = SerialEnvManager(env=env, count=ENVS, seed=3)
    other = SyncSubprocessEnvManager(env=env, count=ENVS, seed=3)
    envs.reset()
    acts = actions(envs.spec().action)
    for action in acts[:100]:
        envs.advance(action)
    try:
        other.load_state_dict(envs.state_dict())
        for action in acts[100:]:
            one, two = envs.advance(action), other.advance(action)
            assert all(np.array_equal(a, b) for a, b in zip(one[:5], two[:5], strict=True))
        assert other.failures.unrestored_envs == 0
    finally:
        other.close()


def check_settings() -> None:
    """Check arguments, limits and unknown ids."""
    env = LegacyGym(id="Pendulum-v1", kwargs={"g": 9.81}, max_episode_steps=5)
    envs = SerialEnvManager(env=env, count=1, seed=3)
    envs.reset()
    assert envs.local_envs.envs[0]._env.unwrapped.g == 9.81
    cut = [envs.advance(np.zeros((1, 1), np.float32)).truncated[0] for _ in range(10)]
    assert cut == [t in (4, 9) for t in range(10)], cut
    with pytest.raises(UnsoundError, match=r"did you mean.*'CartPole-v1'"):
        LegacyGym(id="CartPol-v1").make(0)


def check_digest() -> None:
    """Run a graph twice with the same seed."""
    digests = set()
    for _ in range(2):
        graph = load("cartpole_dqn", {"env": {"type": "gym", "id": "CartPole-v1"}})
        with tempfile.TemporaryDirectory() as folder:
            digests.add(graph.run(train_iters=20, seed=3, out=f"{folder}/run").digest)
    assert len(digests) == 1


if __name__ == "__main__":
    assert gym.__version__ == sys.argv[1], (gym.__version__, gym.__file__)
    for name, ends in IDS.items():
        check_steps(name, ends)
    check_workers()
    check_settings()
    if gym.__version__ == "0.21.0":
        check_digest()
    print("equal")
