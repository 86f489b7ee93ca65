"""Pools: their episodes are counted as those of single envs, and their void steps told as such."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl.core.node import Surroundings, UnsoundError
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
def test_episodes_are_counted_and_the_step_that_begins_one_is_void(kind: Any) -> None:
    envs = manager(kind)
    obs = envs.reset()
    lengths, over, episodes = np.zeros(ENVS), np.zeros(ENVS, bool), 0
    for _ in range(200):
        steps = envs.advance((obs[:, 2] > 0).astype(np.int64))
        assert list(steps.failed) == np.flatnonzero(over).tolist()
        assert (np.abs(steps.obs[over]) <= 0.05).all()  # where CartPole begins
        lengths = np.where(over, 0, lengths + 1)
        over = steps.terminated | steps.truncated
        assert [e.env_id for e in steps.episodes] == np.flatnonzero(over).tolist()
        assert [e.length for e in steps.episodes] == lengths[over].tolist()
        assert [e.total for e in steps.episodes] == lengths[over].tolist()
        episodes += len(steps.episodes)
        obs = steps.obs
    assert episodes > ENVS
    envs.close()


def test_gymnasiums_pool_gives_what_it_gives_bare() -> None:
    envs = manager(VectorEnvManager)
    first = envs.reset()
    bare = gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    np.testing.assert_array_equal(first, bare.reset(seed=envs._accounts.seeds[0])[0])
    rng = np.random.default_rng(0)
    for _ in range(100):
        actions = rng.integers(2, size=ENVS)
        steps, expected = envs.advance(actions), bare.step(actions)
        for one, other in zip(steps[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(one, other)


@kinds
def test_fixed_seeds_begin_the_same_episodes_again(kind: Any) -> None:
    envs = manager(kind, dynamic_seeds=False)
    first, again = envs.reset(), envs.reset()
    np.testing.assert_array_equal(first, again)
    other = manager(kind)
    assert not np.array_equal(other.reset(), other.reset())
    envs.close(), other.close()


@kinds
def test_a_pool_says_why_it_cannot_be_saved(kind: Any) -> None:
    envs, other = manager(kind), manager(kind)
    other.load_state_dict(envs.state_dict())  # nothing has begun: there is nothing to lose
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
    with pytest.raises(ValueError, match="is being stepped"):
        envs.send(order, np.zeros(5, np.int64))
    ids, steps = envs.recv(order)
    np.testing.assert_array_equal(ids, order)
    assert np.sign(steps.obs[:, 1]).tolist() == [1, -1, 1, -1, 1]  # pushed so
    with pytest.raises(ValueError, match="was not sent"):
        envs.recv()
    with pytest.raises(ValueError, match="a pool steps all its 5 at once"):
        envs.advance(np.zeros(2, np.int64), [0, 1])
    envs.close()


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"id": "Acrobot-v1"}, "gymnasium has no vector env 'Acrobot-v1'; "),
        ({"id": "Cartpole-v1"}, r"did you mean 'CartPole-v1'\?"),
        ({"id": "CartPole-v1", "each": [{"a": 1}]}, "a pool's envs have no each"),
    ],
)
def test_what_a_pool_cannot_do_is_said_before_the_run(params: Any, told: str) -> None:
    config = VectorEnvManager.Config(env=Gymnasium(**params))
    with pytest.raises(UnsoundError, match=told):
        VectorEnvManager.describe(config, Surroundings({}, {}, frozenset()))


def test_a_pool_is_not_made_by_an_id_that_names_something_else() -> None:
    config = VectorEnvManager.Config(env=LegacyGym(id="CartPole-v1"))
    with pytest.raises(
        UnsoundError, match="an id of its own, and the env is a LegacyGym; give Gymnas"
    ):
        VectorEnvManager.describe(config, Surroundings({}, {}, frozenset()))


@kinds
def test_by_hand_the_loop_of_every_other_kind_plays_each_envs_episodes(kind: Any) -> None:
    envs = manager(kind, count=3)
    with pytest.raises(ValueError, match="nothing was launched"):
        envs.step({0: 0})
    with pytest.raises(ValueError, match=r"the envs have not begun; call reset\(\) first"):
        envs.advance(np.zeros(3, np.int64))
    envs.launch(episodes=1)
    ended: list[int] = []
    while not envs.done:
        ready = envs.ready_obs
        timesteps = envs.step({i: int(obs[2] > 0) if i else 0 for i, obs in ready.items()})
        assert timesteps.keys() == ready.keys()
        ended += [i for i, timestep in timesteps.items() if timestep.done]
    assert sorted(ended) == [0, 1, 2]
    assert ended[0] == 0  # which fell first: the others went on
    envs.close()


@kinds
def test_what_a_pool_cannot_be_made_of_is_told_as_for_every_env(kind: Any) -> None:
    config = kind.Config(env=Gymnasium(id="CartPole-v1", kwargs={"nope": 1}))
    with pytest.raises(
        UnsoundError,
        match=r"the env cannot be made: TypeError: .*nope.*; correct its id or its arguments",
    ):
        kind.describe(config, Surroundings({}, {}, frozenset()))


def test_envpool_says_why_two_runs_may_differ() -> None:
    assert "streams of their own" in EnvPoolEnvManager.nondeterministic(None)


def test_a_time_limit_reaches_the_pool() -> None:
    env = Gymnasium(id="CartPole-v1", max_episode_steps=3)
    envs = VectorEnvManager(env=env, count=2)
    envs.reset()
    cut = [envs.advance(np.zeros(2, np.int64)).truncated.all() for _ in range(3)]
    assert cut == [False, False, True]
