"""Agents that share a policy are rows of their own, in every kind of env manager."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.crash_files import replay_crash_file
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.agent_columns import AgentColumns
from flowrl.nodes.envs.agent_rows import AgentRows, as_agent_rows
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.envs.wrappers.actions import ActionRepeat, ActionScale, StickyActions
from flowrl.nodes.envs.wrappers.episodes import EpisodicLife, FireOnReset, NoopStart, TimeLimit
from flowrl.nodes.envs.wrappers.frame_stack import FrameStack
from flowrl.nodes.envs.wrappers.leaves import Previous
from flowrl.nodes.envs.wrappers.rewards import RewardClip
from flowrl.nodes.envs.wrappers.wrapper import ImportedWrapper
from flowrl.nodes.observations import NestedColumns
from tests.nodes.env_managers.manager_kinds import KINDS, OTHERS, steps_are_equal
from tests.nodes.envs.agent_managers import SCRIPTED_AGENTS, make_manager, scripted_agents


def zeros(rows: int = 6) -> Any:
    return np.zeros((rows, 1), np.float32)


def test_a_row_is_an_agent_and_the_count_is_over_all_envs() -> None:
    spec = make_manager(scripted_agents(), count=4).spec()
    assert (spec.obs, spec.action) == (Column("float32", (2,)), Column("float32", (1,)))
    assert (spec.count, spec.agents) == (12, 3)
    assert spec.action.high == (2.0,)
    discrete = make_manager(scripted_agents(space="discrete")).spec()
    assert (discrete.obs.n, discrete.action.n) == (99, 2)


def test_an_agent_has_no_valid_row_while_it_is_inactive() -> None:
    envs = as_agent_rows(make_manager(scripted_agents(cut="b"), count=1))
    seed = envs.reset()[0, 0]
    assert envs.reset()[:, 1].tolist() == [0, 1, 0]
    table = []
    for act in range(7):
        s = envs.advance(np.full((3, 1), act == 1, np.float32))
        played = sorted(set(range(3)) - set(s.absent))
        rows = [(k, s.reward[k], s.next_obs[k, 1], s.terminated[k], s.truncated[k]) for k in played]
        table.append((rows, s.obs[:, 1].tolist(), s.episodes))
    assert table == [
        # of agents that acted: reward, next observation, flags; observations to act on; finished episodes
        ([(0, 0, 10, 0, 0), (1, 100, 11, 0, 0)], [10, 11, 0], []),
        ([(0, 1.5, 20, 1, 0), (1, 101.5, 21, 0, 0)], [0, 21, 0], [Episode(0, 1.5, 2)]),
        ([(1, 102, 31, 0, 0)], [30, 31, 32], []),
        (
            [(0, 3, 40, 0, 0), (1, 103, 41, 0, 1), (2, 203, 42, 0, 0)],
            [40, 0, 42],
            [Episode(1, 406.5, 4)],
        ),
        ([(0, 4, 50, 1, 0), (2, 204, 52, 0, 0)], [0, 0, 52], [Episode(0, 7.0, 2)]),
        ([(2, 205, 62, 1, 0)], [0, 1, 0], [Episode(2, 612.0, 3)]),
        ([(0, 0, 10, 0, 0), (1, 100, 11, 0, 0)], [10, 11, 0], []),
    ]
    assert s.obs[0, 0] != seed  # another game


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("space", ["box", "mask"])
def test_every_kind_of_manager_gives_the_same_bits(kind: str, space: str) -> None:
    env = scripted_agents(cut="b", space=space)
    acts = zeros() if space == "box" else np.zeros(6, np.int64)
    base, other = make_manager(env), make_manager(env, kind)
    try:
        one, two = as_agent_rows(base), as_agent_rows(other)
        np.testing.assert_array_equal(one.reset(), two.reset())
        for _ in range(15):
            assert steps_are_equal(one.advance(acts), two.advance(acts))
        second = np.array([3, 4, 5])
        for envs in (one, two):
            envs.send(second, acts[:3])
        (at, a), (_, b) = one.recv(second), two.recv(second)
        assert at.tolist() == [3, 4, 5]
        assert steps_are_equal(a, b)
    finally:
        base.close(), other.close()


def test_agents_of_an_env_step_together() -> None:
    envs = as_agent_rows(make_manager(scripted_agents()))
    envs.reset()
    for ids in ([0, 1], [1, 2, 3], [0, 1, 2, 3], [2, 1, 0]):
        with pytest.raises(ValueError, match="the 3 agents of an env step together"):
            envs.send(np.array(ids), zeros(len(ids)))
    with pytest.raises(ValueError, match="5 actions for 6 agents"):
        envs.advance(zeros(5))
    assert isinstance(envs, AgentRows)
    assert as_agent_rows(envs) is envs


def test_an_agents_row_does_not_depend_on_the_order_in_which_the_env_lists_agents() -> None:
    rows = []
    for game in (["abc", "abc", "abc"], ["abc", "cab", "bca"]):
        envs = as_agent_rows(make_manager(scripted_agents(game=game), count=1))
        envs.reset()
        rows.append([envs.advance(np.array([[0.0], [1], [0]], np.float32)) for _ in range(3)])
    assert all(steps_are_equal(a, b) for a, b in zip(*rows, strict=True))


def test_some_agents_may_terminate_while_others_are_truncated() -> None:
    envs = as_agent_rows(make_manager(scripted_agents(game=["abc"], cut="ac"), count=1))
    envs.reset()
    steps = envs.advance(zeros(3))
    assert (steps.terminated.tolist(), steps.truncated.tolist()) == (
        [False, True, False],
        [True, False, True],
    )
    assert [episode.env_id for episode in steps.episodes] == [0, 1, 2]
    assert steps.obs[:, 1].tolist() == [0, 1, 2]  # of the next episode
    assert steps.next_obs[:, 1].tolist() == [10, 11, 12]


def test_a_limit_truncates_all_active_agents() -> None:
    envs = as_agent_rows(make_manager(scripted_agents(limit=4), count=1))
    envs.reset()
    *_, steps = (envs.advance(zeros(3)) for _ in range(4))
    assert (steps.terminated.tolist(), steps.truncated.tolist()) == (
        [False, True, False],
        [True, False, True],
    )
    assert [e.length for e in steps.episodes] == [1, 4, 1]
    assert steps.obs[:, 1].tolist() == [0, 1, 0]


def test_each_and_seeds_work_as_for_other_envs() -> None:
    games: Any = [{"game": ["ab"]}, {"game": ["ab", "ab"]}]
    envs = as_agent_rows(make_manager(scripted_agents(each=games), count=3))
    first = envs.reset()
    assert len({*first[::3, 0]}) == 3
    assert [e.env_id for e in envs.advance(zeros(9)).episodes] == [0, 1, 6, 7]
    again = as_agent_rows(make_manager(scripted_agents(each=games), count=3))
    np.testing.assert_array_equal(again.reset(), first)


# wrappers


def double_actions(env: Any) -> Any:
    """A wrapper that changes actions without being an `ActionWrapper`."""
    import gymnasium

    class DoubledActions(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            return self.env.step(2 * action)

    return DoubledActions(env)


def test_frames_are_stacked_for_each_agent() -> None:
    envs = as_agent_rows(make_manager(scripted_agents(FrameStack(n=2)), count=1))
    assert envs.spec().obs.frames == 2
    envs.reset()
    seen = [envs.advance(zeros(3)).obs[..., 1].tolist() for _ in range(5)]
    assert seen == [
        [[0, 10], [1, 11], [0, 0]],
        [[0, 0], [11, 21], [0, 0]],
        [[30, 30], [21, 31], [32, 32]],  # an agent that joins begins with its first frame, twice
        [[30, 40], [0, 0], [32, 42]],
        [[0, 0], [0, 0], [42, 52]],
    ]


def test_rewards_are_clipped_for_each_agent_and_returns_are_not() -> None:
    envs = as_agent_rows(make_manager(scripted_agents(RewardClip(low=-1, high=2)), count=1))
    envs.reset()
    rows = [envs.advance(zeros(3)) for _ in range(5)]
    assert [r.reward.tolist() for r in rows[3:]] == [[2, 2, 2], [2, 0, 2]]
    assert [e for r in rows for e in r.episodes][-1] == Episode(0, 7.0, 2)


def test_actions_are_scaled_and_observed_for_each_agent() -> None:
    envs = make_manager(scripted_agents(ActionScale(), Previous()), count=1)
    rows = as_agent_rows(envs)
    assert (rows.spec().action.low, rows.spec().action.high) == ((-1.0,), (1.0,))
    rows.reset()
    steps = rows.advance(np.array([[0.5], [-1], [0]], np.float32))
    inner = envs.local_envs.envs[0]._env
    assert {a: float(act[0]) for a, act in inner.received_actions[-1].items()} == {
        "a": 1.0,
        "b": -2.0,
    }
    assert steps.reward.tolist() == [0.5, 100, 0]  # agent a took the action 1
    assert steps.obs["last_action"].tolist() == [[0.5], [-1], [0]]
    assert steps.obs["last_reward"].tolist() == [[0.5], [100], [0]]


@pytest.mark.parametrize(
    "wrapper",
    [
        StickyActions(),
        ActionRepeat(),
        TimeLimit(steps=2),
        NoopStart(),
        FireOnReset(),
        EpisodicLife(),
    ],
)
def test_wrappers_that_take_steps_or_end_episodes_are_refused(wrapper: Any) -> None:
    with pytest.raises(UnsoundError, match="cannot be applied to one of many agents; leave it out"):
        scripted_agents(wrapper, space="mask").spec()


def test_a_wrapper_that_changes_actions_otherwise_is_an_error() -> None:
    envs = as_agent_rows(
        make_manager(
            scripted_agents(
                ImportedWrapper(id="tests.nodes.envs.test_shared_agents:double_actions")
            ),
            count=1,
        )
    )
    envs.reset()
    with pytest.raises(EnvError, match=r"a wrapper changes the action \[1.\] to \[2.\]"):
        envs.advance(zeros(3) + 1)


# masks


def test_each_agent_has_its_own_mask_and_an_inactive_one_allows_all() -> None:
    envs = as_agent_rows(make_manager(scripted_agents(space="mask"), count=1))
    obs = envs.spec().obs
    assert isinstance(obs, NestedColumns)
    assert obs.columns["action_mask"] == Column("int8", (2,))
    assert envs.reset()["action_mask"].tolist() == [[0, 1], [0, 1], [1, 1]]  # c is inactive
    steps = envs.advance(np.zeros(3, np.int64))
    assert steps.obs["action_mask"].tolist() == [[1, 1]] * 3
    assert steps.obs["observation"][:, 1].tolist() == [10, 11, 0]


# failures


@pytest.mark.parametrize(
    ("kwargs", "what"),
    [
        (
            {"wrong": "leaves without an end"},
            "agent a is not active any more, but was neither terminated nor truncated",
        ),
        ({"wrong": "stays after its end"}, "agent a is still active, but its episode has ended"),
        ({"wrong": "nan"}, "b: the reward is nan; it must be a finite number"),
        (
            {"wrong": "no word about the end"},
            "agent b: terminated is None; it must be true or false",
        ),
        (
            {"wrong": "no observation"},
            "agent b is active, but the env returns no observation for it",
        ),
        ({"names": ["a", "b"]}, "agent c is active and not one of the env's possible_agents"),
        ({"game": [""]}, "no agent is active after the reset"),
    ],
)
def test_an_agent_error_names_the_agent(kwargs: dict[str, Any], what: str) -> None:
    envs = as_agent_rows(make_manager(scripted_agents(**kwargs), count=1))

    def play() -> None:
        rows = len(envs.reset())
        for _ in range(3):
            envs.advance(zeros(rows))

    with pytest.raises(EnvError, match=what):
        play()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "sync, one env per worker", "thread"])
def test_a_failed_env_is_invalid_for_its_agents_and_no_others(kind: str) -> None:
    env = scripted_agents(each=[{"wrong": "raises"}, {}])
    manager = make_manager(env, kind, max_retry=2, retry_waiting_time_s=0.0)
    reference = as_agent_rows(make_manager(scripted_agents(), count=2))
    try:
        envs = as_agent_rows(manager)
        np.testing.assert_array_equal(envs.reset(), reference.reset())
        for _ in range(2):
            assert steps_are_equal(envs.advance(zeros()), reference.advance(zeros()))
        steps, other = envs.advance(zeros()), reference.advance(zeros())
        assert (list(steps.failed), steps.absent.tolist()) == ([0, 1, 2], [3, 5])
        assert steps.episodes == []
        assert steps.obs[:3, 1].tolist() == [0, 1, 0]  # the env is restarted
        for name in ("obs", "reward", "next_obs"):
            np.testing.assert_array_equal(getattr(steps, name)[3:], getattr(other, name)[3:])
        assert (manager.failures.failures, manager.failures.dropped_steps) == (1, 3)
    finally:
        manager.close()


@pytest.mark.slow
def test_a_failed_env_can_be_replayed_from_its_crash_file(tmp_path: Path) -> None:
    envs = as_agent_rows(make_manager(scripted_agents(wrong="raises"), count=1))

    def play() -> None:
        envs.reset()
        for _ in range(3):
            envs.advance(zeros(3))

    with pytest.raises(EnvError, match="the game fell over") as raised:
        play()
    (path,) = raised.value.save(tmp_path)
    lines: list[str] = []
    assert replay_crash_file(str(path), print_line=lines.append)
    assert lines[-1] == "it failed again: ZeroDivisionError: the game fell over"


def test_a_worker_that_dies_changes_no_step() -> None:
    manager = make_manager(scripted_agents(), "sync, one env per worker")
    reference = as_agent_rows(make_manager(scripted_agents(), count=2))
    try:
        envs = as_agent_rows(manager)
        np.testing.assert_array_equal(envs.reset(), reference.reset())
        for step in range(8):
            if step == 4:
                os.kill(manager.pool.workers[0].pid, signal.SIGKILL)
            assert steps_are_equal(envs.advance(zeros()), reference.advance(zeros()))
        assert manager.failures.restored_envs == 1
    finally:
        manager.close()


def test_the_joint_reward_is_refused_for_agents_that_act_by_themselves() -> None:
    with pytest.raises(ValueError, match="`reward` is for `agents: joint`"):
        PettingZoo(id=SCRIPTED_AGENTS, agents="shared", reward="mean")


def test_an_unfinished_episode_is_saved_and_continues_with_the_same_bits() -> None:
    one, two = (make_manager(scripted_agents(cut="b")) for _ in range(2))
    rows, others = as_agent_rows(one), as_agent_rows(two)
    rows.reset()
    for _ in range(3):
        rows.advance(zeros())
    two.load_state_dict(one.state_dict())
    for _ in range(9):
        assert steps_are_equal(rows.advance(zeros()), others.advance(zeros()))


# without the engine


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_launched_ids_are_agents_and_an_env_is_done_when_all_its_agents_are(kind: str) -> None:
    envs = make_manager(scripted_agents(), kind)
    try:
        envs.launch(episodes=1)
        assert sorted(envs.ready_obs) == [0, 1, 2, 3, 4, 5]
        ended: list[int] = []
        games = 0
        while not envs.done:
            for i, step in envs.step({i: [1.0] for i in envs.ready_obs}).items():
                assert not (step.absent and step.done)
                ended += [i] * step.done
            games += 1
        assert games == 6  # agent c is done in the last step, and agent a twice by then
        assert sorted(ended) == [0, 0, 1, 2, 3, 3, 4, 5]
        assert envs.ready_obs == {}
    finally:
        envs.close()


def test_the_record_of_an_env_has_the_described_columns() -> None:
    agents = AgentColumns(2, Column("float32", (3,)), Column("int64", n=4))
    assert agents.actions == Column("int64", (2,))
    assert agents.record.columns["obs"] == Column("float32", (2, 3))
    part = scripted_agents()
    env = part.make(0)
    record, _ = env.reset(seed=3)
    assert record.dtype == part.spec()[0].dtype  # type: ignore[union-attr]
    assert isinstance(SerialEnvManager(env=part, count=1).spec().obs, Column)


@pytest.mark.parametrize("continuous", [False, True])
def test_an_env_of_pettingzoo_steps_as_through_its_own_interface(continuous: bool) -> None:
    mpe = pytest.importorskip("mpe2.simple_spread_v3")
    kwargs = {"max_cycles": 7, "continuous_actions": continuous}
    env = PettingZoo(id="mpe2.simple_spread_v3:parallel_env", agents="shared", kwargs=kwargs)
    manager = make_manager(env, count=1)
    envs, bare, rng = as_agent_rows(manager), mpe.parallel_env(**kwargs), np.random.default_rng(0)
    obs = envs.reset()
    for _ in range(3):
        seen, _ = bare.reset(seed=manager.statistics.seeds[0])
        np.testing.assert_array_equal(obs, [*seen.values()])
        while bare.agents:
            acts = rng.random((3, 5), np.float32) if continuous else rng.integers(5, size=3)
            steps = envs.advance(acts)
            seen, rewards, _, cut, _ = bare.step(dict(zip(bare.agents, acts, strict=True)))
            np.testing.assert_array_equal(steps.next_obs, [*seen.values()])
            np.testing.assert_array_equal(steps.reward, np.float32([*rewards.values()]))
            assert steps.truncated.tolist() == [*cut.values()]
            assert len(steps.absent) == 0
            obs = steps.obs
    bare.close(), manager.close()
