"""Whatever kind an env manager is: the same columns, episodes, seeds and errors, to the bit."""

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
def test_every_kind_gives_the_bits_of_the_base_kind(kind: str) -> None:
    with open_manager("serial") as base, open_manager(kind) as other:
        np.testing.assert_array_equal(base.reset(), other.reset())
        for _ in range(40):
            assert steps_are_equal(base.advance(zeros()), other.advance(zeros()))
        np.testing.assert_array_equal(base.reset(), other.reset())
        for _ in range(5):
            assert steps_are_equal(base.advance(zeros()), other.advance(zeros()))


@others
def test_halves_and_single_envs_are_sent_and_received_as_in_the_base_kind(kind: str) -> None:
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
@pytest.mark.parametrize("cls", ["Pushing", "Stubborn", "Reusing"])
def test_other_observations_and_actions_pass_as_in_the_base_kind(kind: str, cls: str) -> None:
    with open_manager("serial", cls) as base, open_manager(kind, cls) as other:
        np.testing.assert_array_equal(base.reset(), other.reset())
        rng, column = np.random.default_rng(0), base.spec().action
        for _ in range(20):
            actions = np.asarray(
                rng.integers(column.n, size=3) if column.n else rng.uniform(-1, 1, (3, 2))
            ).astype(column.dtype)
            assert steps_are_equal(base.advance(actions), other.advance(actions))


@kinds
def test_arrays_that_were_given_are_not_written_to_again(kind: str) -> None:
    with open_manager(kind, length=2) as envs:
        given = [envs.reset()]
        for _ in range(4):
            steps = envs.advance(zeros())
            given += [steps.obs, steps.next_obs]
        assert [a[0, 1] for a in given] == [0.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0, 0.0, 2.0]


@kinds
def test_fixed_seeds_begin_the_same_episodes_again(kind: str) -> None:
    with open_manager(kind, dynamic_seeds=False) as envs:
        plays = []
        for _ in range(2):
            plays.append([envs.reset(), *(envs.advance(zeros()).obs for _ in range(7))])
        np.testing.assert_array_equal(*plays)


@kinds
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raises", "step raised ZeroDivisionError: the simulator fell over"),
        ("nan", r"the observation is not finite: \[nan nan\]"),
        ("shape", r"the observation is float32\[1\]; its space is float32\[2\]"),
        ("reward", "the reward is nan; it must be a finite number"),
    ],
)
def test_a_failing_env_is_named_with_seed_step_actions_and_traceback(
    kind: str, how: str, told: str
) -> None:
    with open_manager(kind, "Broken", how=how) as envs:
        obs = envs.reset()
        envs.advance(zeros(1), [1])  # so that env 1 is the first to reach its third step
        envs.advance(np.array([0, 1, 2]))
        with pytest.raises(EnvError, match=told) as error:
            envs.advance(np.array([0, 2, 2]))
        told_of = error.value
        assert (told_of.index, told_of.step, told_of.actions) == (1, 3, (0, 1, 2))
        assert told_of.seed % 1_000_000 == obs[1, 0]
        if how == "raises":
            assert "in step" in str(told_of.files)
            assert "ZeroDivisionError" in str(told_of.files)


@kinds
def test_an_env_that_cannot_begin_is_named_too(kind: str) -> None:
    with open_manager(kind, "BrokenReset", length=1) as envs:
        envs.reset()  # pre-reset envs may have failed already, but nobody waits for them yet
        with pytest.raises(EnvError, match="step 0: reset raised OSError: no simulator answers"):
            [envs.advance(zeros()) for _ in range(3)]


@kinds
def test_misuse_is_refused_and_changes_nothing(kind: str) -> None:
    with open_manager(kind) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="4 actions for 3 envs"):
            envs.advance(zeros(4))
        with pytest.raises(ValueError, match="actions are float64"):
            envs.advance(np.full(3, 0.5))
        envs.send(np.array([0, 2]), zeros(2))
        with pytest.raises(ValueError, match="env 2 is being stepped"):
            envs.send(np.array([1, 2]), zeros(2))
        with pytest.raises(ValueError, match="env 1 was not sent"):
            envs.recv(np.array([1]))
        ids, steps = envs.recv(np.array([2, 0]))
        assert (ids.tolist(), steps.next_obs[:, 1].tolist()) == ([2, 0], [1.0, 1.0])


@kinds
@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([0, 3], "there is no env 3; they are 0 to 2"),
        ([-1, 0], "there is no env -1"),
        ([1, 1], r"envs \[1, 1\] are named; name each once"),
    ],
)
def test_only_envs_that_there_are_can_be_stepped_each_once(
    kind: str, ids: list[int], told: str
) -> None:
    with open_manager(kind) as envs:
        envs.reset()
        for step in (envs.advance, lambda acts, at: envs.send(np.array(at), acts)):
            with pytest.raises(ValueError, match=told):
                step(zeros(2), ids)
        assert envs.advance(zeros()).next_obs[:, 1].tolist() == [1.0, 1.0, 1.0]


@kinds
def test_envs_that_have_not_begun_cannot_be_stepped(kind: str) -> None:
    with open_manager(kind) as envs:
        with pytest.raises(ValueError, match=r"^the envs have not begun; call reset\(\) first"):
            envs.advance(zeros())
        with pytest.raises(ValueError, match=r"^nothing was launched; call launch\(\) first"):
            envs.step({0: 0})


@kinds
@pytest.mark.parametrize(
    ("actions", "told"),
    [
        ({}, "no action is given; give one for each env of ready_obs"),
        ({3: 0}, "there is no env 3; they are 0 to 2"),
        ({-1: 0}, "there is no env -1"),
        ({"a": 0}, "there is no env 'a'"),
        ({0: None}, "an action is None; it must be int64"),
        ({0: "left"}, "an action is .*left.*; it must be int64"),
        ({0: 0.5}, "actions are float64"),
    ],
)
def test_by_hand_what_is_no_action_of_an_env_is_told_and_changes_nothing(
    kind: str, actions: Any, told: str
) -> None:
    with open_manager(kind) as envs:
        with pytest.raises(ValueError, match=r"episodes is 0; give 1 or more"):
            envs.launch(episodes=0)
        envs.launch(episodes=1)
        before = envs.ready_obs
        with pytest.raises(ValueError, match=told):
            envs.step(actions)
        assert envs.ready_obs.keys() == before.keys() == {0, 1, 2}
        timestep = envs.step({0: 0})
        assert timestep[0].obs[1] == 1.0


@kinds
def test_by_hand_every_env_plays_its_episodes_and_is_done(kind: str) -> None:
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


@kinds
def test_after_closing_a_reset_begins_anew(kind: str) -> None:
    with open_manager(kind) as envs:
        first = envs.reset()
        envs.close()
        again = envs.reset()
        assert not np.array_equal(first, again)  # seeds go on
        assert envs.advance(zeros()).next_obs[:, 1].tolist() == [1.0, 1.0, 1.0]
