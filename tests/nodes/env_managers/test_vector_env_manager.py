"""Pools: their episodes are counted as those of single envs, and the steps that reset an env are invalid."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.env_managers.vector_env_manager import EnvPoolEnvManager, VectorEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.legacy_gym import LegacyGym

ENVS = 5
NO_ENVPOOL = importlib.util.find_spec("envpool") is None
kinds = pytest.mark.parametrize(
    "kind",
    [
        VectorEnvManager,
        pytest.param(
            EnvPoolEnvManager, marks=pytest.mark.skipif(NO_ENVPOOL, reason="needs envpool")
        ),
    ],
)


def manager(kind: Any, count: int = ENVS, **params: Any) -> Any:
    return kind(env=Gymnasium(id="CartPole-v1"), count=count, **params)


@kinds
def test_episodes_are_counted_and_the_step_that_begins_one_is_invalid(kind: Any) -> None:
    envs = manager(kind)
    obs = envs.reset()
    lengths, over, episodes = np.zeros(ENVS), np.zeros(ENVS, bool), 0
    for _ in range(200):
        steps = envs.advance((obs[:, 2] > 0).astype(np.int64))
        assert list(steps.failed) == np.flatnonzero(over).tolist()
        assert (np.abs(steps.obs[over]) <= 0.05).all()  # the initial states of CartPole
        lengths = np.where(over, 0, lengths + 1)
        over = steps.terminated | steps.truncated
        assert [e.env_id for e in steps.episodes] == np.flatnonzero(over).tolist()
        assert [e.length for e in steps.episodes] == lengths[over].tolist()
        assert [e.total for e in steps.episodes] == lengths[over].tolist()
        episodes += len(steps.episodes)
        obs = steps.obs
    assert episodes > ENVS
    envs.close()


def test_steps_are_those_of_gymnasiums_pool() -> None:
    envs = manager(VectorEnvManager)
    first = envs.reset()
    bare = gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    np.testing.assert_array_equal(first, bare.reset(seed=envs.statistics.seeds[0])[0])
    rng = np.random.default_rng(0)
    for _ in range(100):
        actions = rng.integers(2, size=ENVS)
        steps, expected = envs.advance(actions), bare.step(actions)
        for one, other in zip(steps[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(one, other)


@kinds
def test_with_fixed_seeds_a_reset_begins_the_same_episodes(kind: Any) -> None:
    envs = manager(kind, dynamic_seeds=False)
    first, again = envs.reset(), envs.reset()
    np.testing.assert_array_equal(first, again)
    other = manager(kind)
    assert not np.array_equal(other.reset(), other.reset())
    envs.close(), other.close()


@kinds
def test_a_pool_cannot_be_saved_after_its_reset(kind: Any) -> None:
    envs, other = manager(kind), manager(kind)
    other.load_state_dict(envs.state_dict())  # before a reset there is no state
    assert envs.state_dict()["envs"] is None
    envs.reset()
    with pytest.raises(ValueError, match=r"a pool cannot be saved.*begin with new episodes"):
        envs.state_dict()
    envs.close()
    assert envs.state_dict()["envs"] is None


@kinds
def test_all_envs_are_sent_and_received_together(kind: Any) -> None:
    envs = manager(kind)
    envs.reset()
    order = np.array([4, 2, 0, 1, 3])
    envs.send(order, np.array([1, 0, 1, 0, 1]))
    with pytest.raises(ValueError, match="its step is pending"):
        envs.send(order, np.zeros(5, np.int64))
    ids, steps = envs.recv(order)
    np.testing.assert_array_equal(ids, order)
    assert np.sign(steps.obs[:, 1]).tolist() == [1, -1, 1, -1, 1]  # the direction of the push
    with pytest.raises(ValueError, match="was not sent"):
        envs.recv()
    with pytest.raises(ValueError, match="a pool steps all its 5 envs at once"):
        envs.advance(np.zeros(2, np.int64), [0, 1])
    envs.close()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"id": "Acrobot-v1"}, "gymnasium has no vector env 'Acrobot-v1'; "),
        ({"id": "Cartpole-v1"}, r"did you mean 'CartPole-v1'\?"),
        ({"id": "CartPole-v1", "each": [{"a": 1}]}, "a pool's envs cannot have each"),
    ],
)
def test_check_refuses_what_a_pool_cannot_do(params: Any, message: str) -> None:
    config = VectorEnvManager.Config(env=Gymnasium(**params))
    with pytest.raises(UnsoundError, match=message):
        VectorEnvManager.describe(config, Surroundings({}, {}, frozenset()))


def test_a_pool_is_not_made_from_another_kind_of_env() -> None:
    config = VectorEnvManager.Config(env=LegacyGym(id="CartPole-v1"))
    with pytest.raises(
        UnsoundError, match="made from an id, and the env is a LegacyGym; give Gymnas"
    ):
        VectorEnvManager.describe(config, Surroundings({}, {}, frozenset()))


@kinds
def test_launched_envs_play_their_episodes_with_the_same_loop_as_other_kinds(kind: Any) -> None:
    envs = manager(kind, count=3)
    with pytest.raises(ValueError, match="the envs were not launched"):
        envs.step({0: 0})
    with pytest.raises(ValueError, match=r"no episode has begun; call reset\(\) first"):
        envs.advance(np.zeros(3, np.int64))
    envs.launch(episodes=1)
    ended: list[int] = []
    while not envs.done:
        ready = envs.ready_obs
        timesteps = envs.step({i: int(obs[2] > 0) if i else 0 for i, obs in ready.items()})
        assert timesteps.keys() == ready.keys()
        ended += [i for i, timestep in timesteps.items() if timestep.done]
    assert sorted(ended) == [0, 1, 2]
    assert ended[0] == 0  # it fell first, and the others continued
    envs.close()


@kinds
def test_an_error_of_the_constructor_is_reported_as_for_every_env(kind: Any) -> None:
    config = kind.Config(env=Gymnasium(id="CartPole-v1", kwargs={"nope": 1}))
    with pytest.raises(
        UnsoundError,
        match=r"the env cannot be made: TypeError: .*nope.*; correct its id or its arguments",
    ):
        kind.describe(config, Surroundings({}, {}, frozenset()))


def test_envpool_says_why_two_runs_may_differ() -> None:
    assert "random streams" in EnvPoolEnvManager.nondeterministic(None)


def test_a_time_limit_reaches_the_pool() -> None:
    env = Gymnasium(id="CartPole-v1", max_episode_steps=3)
    envs = VectorEnvManager(env=env, count=2)
    envs.reset()
    cut = [envs.advance(np.zeros(2, np.int64)).truncated.all() for _ in range(3)]
    assert cut == [False, False, True]
