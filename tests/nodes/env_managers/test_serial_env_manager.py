"""The serial env manager: columns, seeds, episodes, errors, and use without the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.core.facts import Surroundings
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.spec import EnvSpec
from flowrl.nodes.envs.steps import Episode

TOYS = "tests.nodes.toy_envs"


def manager(
    cls: str = "CountingEnv", count: int = 2, seed: int = 0, **kwargs: Any
) -> SerialEnvManager:
    env = Gymnasium(id=f"{TOYS}:{cls}", kwargs=kwargs)
    return SerialEnvManager(env=env, count=count, seed=seed)


def zeros(count: int = 2) -> Any:
    return np.zeros(count, np.int64)


def seeds(envs: SerialEnvManager) -> list[list[int]]:
    return [env.seeds for env in envs.local_envs.envs]


def test_its_facts_have_the_columns_and_the_count() -> None:
    config = SerialEnvManager.Config(env=Gymnasium(id="CartPole-v1"), count=3)
    spec = SerialEnvManager.describe(config, Surroundings({}, {}, frozenset())).service
    assert spec == SerialEnvManager(config=config).spec()
    assert isinstance(spec, EnvSpec)
    assert (str(spec.obs), spec.action.n, spec.count) == ("float32[4]", 2, 3)


def test_a_step_returns_columns_over_all_envs() -> None:
    envs = manager(length=5)
    first = envs.reset()
    steps = envs.advance(zeros())
    assert first[:, 1].tolist() == [0.0, 0.0]
    assert steps.obs[:, 1].tolist() == [1.0, 1.0]
    assert steps.reward.tolist() == [1.0, 1.0]
    dtypes = [str(a.dtype) for a in steps[:5]]
    assert dtypes == ["float32", "float32", "bool", "bool", "float32"]
    assert steps.episodes == []


@pytest.mark.parametrize("ends", ["final", "cut"])
def test_termination_and_truncation_are_distinguished(ends: str) -> None:
    envs = manager(length=1, ends=ends)
    envs.reset()
    steps = envs.advance(zeros())
    assert steps.terminated.tolist() == [ends == "final"] * 2
    assert steps.truncated.tolist() == [ends == "cut"] * 2


def test_the_next_episode_begins_in_the_step_that_ends_one_and_the_last_observation_is_kept() -> (
    None
):
    envs = manager(count=1, length=2)
    first = envs.reset()
    envs.advance(zeros(1))
    steps = envs.advance(zeros(1))
    assert steps.next_obs.tolist() == [[first[0, 0], 2.0]]
    assert steps.obs[0, 1] == 0.0
    assert steps.obs[0, 0] != first[0, 0]


def test_returns_and_lengths_are_counted_by_the_manager() -> None:
    envs = manager(count=2, length=3)
    envs.reset()
    episodes = [e for _ in range(6) for e in envs.advance(zeros()).episodes]
    assert episodes == [Episode(0, 6.0, 3), Episode(1, 6.0, 3)] * 2


def test_returned_arrays_are_not_written_to_again() -> None:
    envs = manager("ReusedArrayEnv", length=2)
    given = [envs.reset()]
    for _ in range(4):
        steps = envs.advance(zeros())
        given += [steps.obs, steps.next_obs]
    assert [a[0, 1] for a in given] == [0.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0, 0.0, 2.0]


def test_the_seeds_of_an_env_do_not_depend_on_the_number_of_envs() -> None:
    few, many = manager(count=2, length=1), manager(count=5, length=1)
    few.reset(), many.reset()
    for _ in range(3):
        few.advance(zeros(2)), many.advance(zeros(5))
    assert seeds(few) == seeds(many)[:2]
    flat = [seed for env in seeds(many) for seed in env]
    assert len(set(flat)) == len(flat) == 20


def test_the_runs_seed_changes_every_episode() -> None:
    a, b, again = manager(seed=0), manager(seed=1), manager(seed=0)
    for envs in (a, b, again):
        envs.reset()
    assert seeds(a) == seeds(again)
    assert not {s for of in seeds(a) for s in of} & {s for of in seeds(b) for s in of}


def test_at_a_reset_dynamic_seeds_continue_and_fixed_ones_repeat() -> None:
    dynamic, fixed = manager(length=1), manager(length=1)
    fixed.seed(fixed.statistics.seed, dynamic_seeds=False)
    for envs in (dynamic, fixed):
        for _ in range(2):
            envs.reset()
            envs.advance(zeros())
    for one in seeds(dynamic):
        assert len(set(one)) == 4
    for one in seeds(fixed):
        assert one[:2] == one[2:]
    assert [one[:2] for one in seeds(fixed)] == [one[:2] for one in seeds(dynamic)]


def test_some_envs_can_be_stepped_without_the_others() -> None:
    envs = manager(count=3, length=9)
    envs.reset()
    steps = envs.advance(zeros(2), [0, 2])
    assert steps.obs[:, 1].tolist() == [1.0, 1.0]
    assert envs.advance(zeros(3)).obs[:, 1].tolist() == [2.0, 1.0, 2.0]


def test_envs_can_be_sent_and_received_in_any_order() -> None:
    sent, stepped = manager(count=4), manager(count=4)
    sent.reset(), stepped.reset()
    for halves in ([0, 1], [2, 3]), ([3, 0], [1, 2]), ([2], [1, 3, 0]):
        for half in halves:
            sent.send(np.array(half), zeros(len(half)))
        for half in reversed(halves):
            ids, steps = sent.recv(np.array(half))
            expected = stepped.advance(zeros(len(half)), half)
            assert ids.tolist() == half
            for one, other in zip(steps[:5], expected[:5], strict=True):
                np.testing.assert_array_equal(one, other)
            assert steps.episodes == expected.episodes
            assert steps.failed == ()


def test_without_ids_all_sent_envs_are_received_in_their_order() -> None:
    envs = manager(count=4)
    envs.reset()
    envs.send(np.array([2, 0]), zeros(2))
    envs.send(np.array([3]), zeros(1))
    ids, steps = envs.recv()
    assert ids.tolist() == [2, 0, 3]
    assert steps.next_obs[:, 1].tolist() == [1.0, 1.0, 1.0]


def test_an_env_is_sent_once_and_then_received_once() -> None:
    envs = manager(count=3)
    envs.reset()
    envs.send(np.array([0, 2]), zeros(2))
    with pytest.raises(ValueError, match="env 2: its step is pending; receive it before"):
        envs.send(np.array([1, 2]), zeros(2))
    with pytest.raises(ValueError, match="env 1: it was not sent; send it before"):
        envs.recv(np.array([0, 1]))
    with pytest.raises(ValueError, match="1 actions for 2 envs"):
        envs.send(np.array([0, 1]), zeros(1))
    with pytest.raises(ValueError, match="env 0: its step is pending"):
        envs.advance(zeros(3))
    assert envs.recv(np.array([2, 0]))[0].tolist() == [2, 0]


def test_continuous_actions_arrive_row_by_row() -> None:
    envs = manager("ContinuousEnv")
    envs.reset()
    steps = envs.advance(np.array([[0.5, 1.0], [-1.0, 2.0]], np.float32))
    assert steps.reward.tolist() == [1.5, 1.0]
    assert steps.obs.tolist() == [[0.5, 1.0, 1.0], [-1.0, 2.0, 1.0]]
    assert steps.obs.dtype == np.float32


def test_a_wrong_number_of_actions_is_refused() -> None:
    envs = manager()
    envs.reset()
    with pytest.raises(ValueError, match="3 actions for 2 envs"):
        envs.advance(zeros(3))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "step raised ZeroDivisionError: the simulator fell over"),
        ("nan", r"the observation is not finite: \[nan nan\]"),
        ("inf", r"the observation is not finite: \[inf inf\]"),
        ("shape", r"the observation is float32\[1\]; its space is float32\[2\]"),
        ("dtype", r"the observation is <U1\[2\]; its space is float32\[2\]"),
        ("reward", "the reward is nan; it must be a finite number"),
        ("reward array", r"the reward is array\(\[1.\]\); it must be a finite number"),
        ("no reward", "the reward is None; it must be a finite number"),
    ],
)
def test_the_error_of_a_failed_step_names_env_seed_step_and_actions(how: str, message: str) -> None:
    envs = manager("BrokenStepEnv", count=3, how=how)
    obs = envs.reset()
    envs.advance(zeros(1), [1])  # so that env 1 is the first to reach its third step
    envs.advance(np.array([0, 1, 2]))
    with pytest.raises(EnvError, match=message) as error:
        envs.advance(np.array([0, 2, 2]))
    assert (error.value.index, error.value.step, error.value.actions) == (1, 3, (0, 1, 2))
    assert error.value.seed % 1_000_000 == obs[1, 0]
    assert str(error.value).startswith(
        f"env 1 (tests.nodes.toy_envs:BrokenStepEnv), episode seed {error.value.seed}, step 3: "
    )
    assert error.value.__cause__ is not None


def test_an_error_shows_only_the_last_ten_actions() -> None:
    envs = manager(count=1, length=12)
    envs.reset()
    for action in [0, 1, 2] * 4:
        envs.advance(np.array([action]))
    with pytest.raises(EnvError, match="AssertionError") as error:
        envs.advance(np.array([7]))
    assert error.value.actions == (7,)  # of the new episode
    envs.reset()
    for action in [0, 1, 2] * 3:
        envs.advance(np.array([action]))
    with pytest.raises(EnvError) as error:
        [envs.advance(np.array([a])) for a in (1, 9)]
    assert error.value.actions == (1, 2, 0, 1, 2, 0, 1, 2, 1, 9)


def test_the_error_of_a_failed_reset_names_the_env() -> None:
    envs = manager("BrokenResetEnv", length=1)
    envs.reset()
    with pytest.raises(
        EnvError, match=r"env 0 .*, step 0: reset raised OSError: no simulator answers"
    ):
        envs.advance(zeros())


def test_large_finite_observations_are_accepted() -> None:
    envs = manager("ContinuousEnv", count=1)
    envs.reset()
    envs.local_envs.envs[0].step = lambda action: (np.full(3, 1e30), 1.0, False, False, {})
    envs.local_envs.step_calls = [env.step for env in envs.local_envs.envs]
    assert envs.advance(np.zeros((1, 2), np.float32)).obs.tolist() == [[np.float32(1e30)] * 3]


def test_an_observation_that_overflows_single_precision_is_not_finite() -> None:
    envs = manager("ContinuousEnv", count=1)
    envs.reset()
    envs.local_envs.step_calls = [lambda action: (np.full(3, 1e300), 1.0, False, False, {})]
    with pytest.raises(EnvError, match="not finite"):
        envs.advance(np.zeros((1, 2), np.float32))


def test_closing_closes_every_env_and_a_reset_makes_new_ones() -> None:
    envs = manager()
    envs.reset()
    old = list(envs.local_envs.envs)
    envs.close()
    assert [env.closed for env in old] == [True, True]
    envs.reset()
    assert not set(envs.local_envs.envs) & set(old)


def test_launched_envs_play_their_episodes_and_are_done() -> None:
    envs = manager(count=3)
    envs.launch(episodes=2)
    ended: list[int] = []
    while not envs.done:
        ready = envs.ready_obs
        timesteps = envs.step(dict.fromkeys(ready, 1))
        assert timesteps.keys() == ready.keys()
        for env_id, timestep in timesteps.items():
            assert timestep.obs[1] == ready[env_id][1] + 1
            assert timestep.done == (timestep.episode is not None)
            ended += [env_id] * timestep.done
    assert sorted(ended) == [0, 0, 1, 1, 2, 2]
    assert envs.ready_obs == {}
    with pytest.raises(ValueError, match="env 1: it is done"):
        envs.step({1: 0})


def test_envs_launched_without_a_quota_are_never_done() -> None:
    envs = manager(length=1)
    envs.launch()
    for _ in range(3):
        envs.step({0: 0, 1: 2})
    assert not envs.done
    assert sorted(envs.ready_obs) == [0, 1]
