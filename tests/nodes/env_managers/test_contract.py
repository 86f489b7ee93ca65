"""Every kind of env manager gives the same observations, episodes, seeds and errors, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.nodes.env_managers.env_error import EnvError
from tests.nodes.env_managers.manager_kinds import KINDS, OTHERS, open_manager, steps_are_equal

kinds = pytest.mark.parametrize("kind", KINDS)
others = pytest.mark.parametrize("kind", OTHERS)


def zeros(count: int = 3) -> Any:
    return np.zeros(count, np.int64)


@others
def test_every_kind_gives_the_same_bits_as_the_serial_one(kind: str) -> None:
    with open_manager("serial") as base, open_manager(kind) as other:
        np.testing.assert_array_equal(base.reset(), other.reset())
        for _ in range(40):
            assert steps_are_equal(base.advance(zeros()), other.advance(zeros()))
        np.testing.assert_array_equal(base.reset(), other.reset())
        for _ in range(5):
            assert steps_are_equal(base.advance(zeros()), other.advance(zeros()))


@pytest.mark.slow
@others
def test_parts_of_the_envs_can_be_sent_and_received_in_any_order(kind: str) -> None:
    turns = [[[0, 1], [2]], [[2, 0], [1]], [[1], [0], [2]], [[0, 2, 1]]] * 4
    with open_manager("serial") as base, open_manager(kind) as other:
        base.reset(), other.reset()
        for halves in turns:
            for envs in (base, other):
                for half in halves:
                    envs.send(np.array(half), zeros(len(half)))
            for half in reversed(halves):
                (ids, one), (_, two) = (envs.recv(np.array(half)) for envs in (base, other))
                assert ids.tolist() == half
                assert steps_are_equal(one, two)


@others
@pytest.mark.parametrize("cls", ["ContinuousEnv", "TwoLengthEnv", "ReusedArrayEnv"])
def test_other_spaces_give_the_same_bits_as_in_the_serial_kind(kind: str, cls: str) -> None:
    with open_manager("serial", cls) as base, open_manager(kind, cls) as other:
        np.testing.assert_array_equal(base.reset(), other.reset())
        rng, column = np.random.default_rng(0), base.spec().action
        for _ in range(20):
            actions = np.asarray(
                rng.integers(column.n, size=3) if column.n else rng.uniform(-1, 1, (3, 2))
            ).astype(column.dtype)
            assert steps_are_equal(base.advance(actions), other.advance(actions))


@pytest.mark.slow
@kinds
def test_returned_arrays_are_not_written_to_again(kind: str) -> None:
    with open_manager(kind, length=2) as envs:
        given = [envs.reset()]
        for _ in range(4):
            steps = envs.advance(zeros())
            given += [steps.obs, steps.next_obs]
        assert [a[0, 1] for a in given] == [0.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0, 0.0, 2.0]


@kinds
def test_with_fixed_seeds_a_reset_begins_the_same_episodes(kind: str) -> None:
    with open_manager(kind, dynamic_seeds=False) as envs:
        plays = []
        for _ in range(2):
            plays.append([envs.reset(), *(envs.advance(zeros()).obs for _ in range(7))])
        np.testing.assert_array_equal(*plays)


@kinds
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "step raised ZeroDivisionError: the simulator fell over"),
        ("nan", r"the observation is not finite: \[nan nan\]"),
        ("shape", r"the observation is float32\[1\]; its space is float32\[2\]"),
        ("reward", "the reward is nan; it must be a finite number"),
    ],
)
def test_the_error_of_a_failed_step_names_env_seed_step_and_actions(
    kind: str, how: str, message: str
) -> None:
    with open_manager(kind, "BrokenStepEnv", how=how) as envs:
        obs = envs.reset()
        envs.advance(zeros(1), [1])  # so that env 1 is the first to reach its third step
        envs.advance(np.array([0, 1, 2]))
        with pytest.raises(EnvError, match=message) as raised:
            envs.advance(np.array([0, 2, 2]))
        error = raised.value
        assert (error.index, error.step, error.actions) == (1, 3, (0, 1, 2))
        assert error.seed % 1_000_000 == obs[1, 0]
        if how == "raises":
            assert "in step" in str(error.files)
            assert "ZeroDivisionError" in str(error.files)


@pytest.mark.slow
@kinds
def test_the_error_of_a_failed_reset_names_the_env(kind: str) -> None:
    with open_manager(kind, "BrokenResetEnv", length=1) as envs:
        envs.reset()  # spare envs may have failed already, but their episodes are not needed yet
        with pytest.raises(EnvError, match="step 0: reset raised OSError: no simulator answers"):
            [envs.advance(zeros()) for _ in range(3)]


@kinds
def test_a_refused_call_changes_nothing(kind: str) -> None:
    with open_manager(kind) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="4 actions for 3 envs"):
            envs.advance(zeros(4))
        with pytest.raises(ValueError, match="actions are float64"):
            envs.advance(np.full(3, 0.5))
        envs.send(np.array([0, 2]), zeros(2))
        with pytest.raises(ValueError, match="env 2: its step is pending"):
            envs.send(np.array([1, 2]), zeros(2))
        with pytest.raises(ValueError, match="env 1: it was not sent"):
            envs.recv(np.array([1]))
        ids, steps = envs.recv(np.array([2, 0]))
        assert (ids.tolist(), steps.next_obs[:, 1].tolist()) == ([2, 0], [1.0, 1.0])


@kinds
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 3], "env 3 does not exist; ids are 0 to 2"),
        ([-1, 0], "env -1 does not exist"),
        ([1, 1], r"the ids \[1, 1\] repeat an env; give each env once"),
    ],
)
def test_unknown_and_repeated_ids_are_refused(kind: str, ids: list[int], message: str) -> None:
    with open_manager(kind) as envs:
        envs.reset()
        for step in (envs.advance, lambda acts, at: envs.send(np.array(at), acts)):
            with pytest.raises(ValueError, match=message):
                step(zeros(2), ids)
        assert envs.advance(zeros()).next_obs[:, 1].tolist() == [1.0, 1.0, 1.0]


@kinds
def test_envs_cannot_be_stepped_before_a_reset(kind: str) -> None:
    with open_manager(kind) as envs:
        with pytest.raises(ValueError, match=r"no episode has begun; call reset\(\) first"):
            envs.advance(zeros())
        with pytest.raises(ValueError, match=r"the envs were not launched; call launch\(\) first"):
            envs.step({0: 0})


@kinds
@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({}, "no action is given; give one for an env of ready_obs"),
        ({3: 0}, "env 3 does not exist; ids are 0 to 2"),
        ({-1: 0}, "env -1 does not exist"),
        ({"a": 0}, "env 'a' does not exist"),
        ({0: None}, "an action is None; expected int64"),
        ({0: "left"}, "an action is .*left.*; expected int64"),
        ({0: 0.5}, "actions are float64"),
    ],
)
def test_invalid_actions_of_step_are_refused_and_change_nothing(
    kind: str, actions: Any, message: str
) -> None:
    with open_manager(kind) as envs:
        with pytest.raises(ValueError, match=r"episodes is 0; give at least 1"):
            envs.launch(episodes=0)
        envs.launch(episodes=1)
        before = envs.ready_obs
        with pytest.raises(ValueError, match=message):
            envs.step(actions)
        assert envs.ready_obs.keys() == before.keys() == {0, 1, 2}
        timestep = envs.step({0: 0})
        assert timestep[0].obs[1] == 1.0


@kinds
def test_launched_envs_play_their_episodes_and_are_done(kind: str) -> None:
    with open_manager(kind) as envs:
        envs.launch(episodes=2)
        ended: list[int] = []
        while not envs.done:
            ready = envs.ready_obs
            for env_id, timestep in envs.step(dict.fromkeys(ready, 1)).items():
                assert timestep.obs[1] == ready[env_id][1] + 1
                ended += [env_id] * timestep.done
        assert sorted(ended) == [0, 0, 1, 1, 2, 2]
        assert envs.ready_obs == {}


@pytest.mark.slow
@kinds
def test_a_reset_after_closing_begins_new_episodes(kind: str) -> None:
    with open_manager(kind) as envs:
        first = envs.reset()
        envs.close()
        again = envs.reset()
        assert not np.array_equal(first, again)  # seeds continue
        assert envs.advance(zeros()).next_obs[:, 1].tolist() == [1.0, 1.0, 1.0]
