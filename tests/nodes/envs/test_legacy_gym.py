"""Envs of the real package gym 0.26 in an env manager, compared with gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from flowrl.api import load
from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.legacy_gym import LegacyGym

gym = pytest.importorskip("gym")

ENVS = 3


def manager(env: Gymnasium, seed: int = 7) -> SerialEnvManager:
    return SerialEnvManager(env=env, count=ENVS, seed=seed)


def actions(envs: SerialEnvManager, steps: int) -> list[Any]:
    """Random actions, which are the same for both packages."""
    rng, column = np.random.default_rng(0), envs.spec().action
    if column.n is not None:
        return list(rng.integers(column.n, size=(steps, ENVS)))
    return list(rng.uniform(-1, 1, (steps, ENVS, *column.shape)).astype(column.dtype))


def trajectory(env: Gymnasium, steps: int) -> list[Any]:
    """All arrays of this many steps."""
    envs = manager(env)
    arrays: list[Any] = [envs.reset()]
    for action in actions(envs, steps):
        stepped = envs.advance(action)
        arrays += [*stepped[:5], np.array(stepped.episodes)]
    envs.close()
    return arrays


@pytest.mark.slow
@pytest.mark.parametrize("id", ["CartPole-v1", "MountainCar-v0", "Pendulum-v1", "FrozenLake-v1"])
def test_gym_and_gymnasium_give_the_same_steps_for_equal_seeds_and_actions(id: str) -> None:
    old, new = trajectory(LegacyGym(id=id), 450), trajectory(Gymnasium(id=id), 450)
    assert sum(len(episodes) for episodes in old[6::6]) >= ENVS  # episodes ended and new ones began
    for ours, theirs in zip(old, new, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
def test_the_columns_are_those_of_gymnasium(id: str) -> None:
    ours, theirs = LegacyGym(id=id).spec(), Gymnasium(id=id).spec()
    assert [str(column) for column in ours] == [str(column) for column in theirs]
    ours_acts, theirs_acts = ours[1], theirs[1]
    assert [getattr(ours_acts, k) for k in ("n", "low", "high")] == [
        getattr(theirs_acts, k) for k in ("n", "low", "high")
    ]


def test_the_limit_of_a_registered_env_truncates() -> None:
    envs = manager(LegacyGym(id="Pendulum-v1"))
    envs.reset()
    steps = [envs.advance(action) for action in actions(envs, 201)]
    assert [s.truncated.any() for s in steps] == [False] * 199 + [True, False]
    assert not any(s.terminated.any() for s in steps)
    assert [episode.length for episode in steps[199].episodes] == [200] * ENVS


def test_a_limit_in_the_graph_overrides_that_of_the_id() -> None:
    envs = manager(LegacyGym(id="Pendulum-v1", max_episode_steps=5))
    envs.reset()
    assert [envs.advance(a).truncated.all() for a in actions(envs, 6)] == [False] * 4 + [
        True,
        False,
    ]


def test_arguments_reach_the_constructor_of_a_registered_env() -> None:
    env = LegacyGym(id="Pendulum-v1", kwargs={"g": 9.81}).make(0)
    assert env._env.unwrapped.g == 9.81


def test_an_unknown_id_names_the_nearest_registered_one() -> None:
    with pytest.raises(UnsoundError, match=r"cannot make the env 'CartPol-v1'.*'CartPole-v1'"):
        LegacyGym(id="CartPol-v1").make(0)


class Old(gym.Env):
    """The interface of gym 0.21: four results of a step, one of a reset, and `seed`."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, ends: int = 6) -> None:
        self.ends = ends

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.rng = np.random.default_rng(seed)
        return [seed]

    def reset(self) -> Any:
        self.t, self.start = 0, self.rng.integers(1000)
        return self._obs()

    def step(self, action: int) -> tuple[Any, float, bool, dict]:
        self.t += 1
        return self._obs(), 1.0, self.t == self.ends, {}

    def _obs(self) -> Any:
        return np.array([self.start, self.t], np.float32)


class OldUnseeded(Old):
    """Without `seed`, which the base class of gym 0.26 lacks. It draws from the generator of the base class."""

    seed = property()  # type: ignore[assignment]

    def reset(self) -> Any:
        self.t, self.start = 0, self.np_random.integers(1000)
        return self._obs()


class OldSeededByReset(Old):
    """The interface of gym 0.22 to 0.25: `reset` takes the seed, and a step has four results."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.seed(seed)
        return super().reset()


@pytest.fixture
def register() -> Iterator[Callable[..., LegacyGym]]:
    """Register envs with gym for one test."""

    def add(entry: Any, max_episode_steps: int | None = 4, **wanted: Any) -> LegacyGym:
        gym.register("FlowrlOld-v0", entry_point=entry, max_episode_steps=max_episode_steps)
        return LegacyGym(id="FlowrlOld-v0", **wanted)

    yield add
    del gym.envs.registry["FlowrlOld-v0"]


@pytest.mark.parametrize("entry", [Old, OldUnseeded, OldSeededByReset])
def test_an_old_registered_env_is_seeded(register: Any, entry: Any) -> None:
    env = register(entry)
    first, again, other = (manager(env, seed).reset() for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert len({obs[0] for obs in first.tolist()}) == ENVS  # each env has another episode


@pytest.mark.parametrize("entry", [Old, OldUnseeded, OldSeededByReset])
@pytest.mark.parametrize(("ends", "reason"), [(6, "truncated"), (3, "terminated")])
def test_an_old_registered_env_terminates_or_is_truncated(
    register: Any, entry: Any, ends: int, reason: str
) -> None:
    envs = manager(register(entry, kwargs={"ends": ends}))
    envs.reset()
    steps = [envs.advance(np.zeros(ENVS, np.int64)) for _ in range(4)]
    ended = [s for s in steps if s.episodes]
    assert [s.episodes[0].length for s in ended] == [min(ends, 4)]
    assert {name: bool(getattr(ended[0], name).all()) for name in ("truncated", "terminated")} == {
        "truncated": reason == "truncated",
        "terminated": reason == "terminated",
    }
    assert ended[0].next_obs[:, 1].tolist() == [min(ends, 4)] * ENVS
    assert ended[0].obs[:, 1].tolist() == [0] * ENVS


def test_wrappers_of_the_user_are_not_removed(register: Any) -> None:
    """Only those of `gym.make` are."""

    class Doubled(gym.Wrapper):
        def step(self, action: int) -> Any:
            obs, reward, done, info = self.env.step(action)
            return obs, 2 * reward, done, {**info, "TimeLimit.truncated": True}

        def reset(self) -> Any:
            return self.env.reset()

    envs = manager(register(lambda: Doubled(Old(ends=2)), max_episode_steps=None))
    envs.reset()
    first, second = (envs.advance(np.zeros(ENVS, np.int64)) for _ in range(2))
    assert first.reward.tolist() == [2.0] * ENVS
    assert second.truncated.all()
    assert not second.terminated.any()


@pytest.mark.slow
def test_a_graph_gives_the_same_digest_with_gym_and_gymnasium(tmp_path: Any) -> None:
    results = []
    for kind in ("gym", "gymnasium"):
        graph = load("cartpole_dqn", {"env": {"type": kind, "id": "CartPole-v1"}})
        results.append(graph.run(train_iters=50, seed=3, out=tmp_path / kind))
    assert [result.train_iters for result in results] == [50, 50]
    assert results[0].digest == results[1].digest
