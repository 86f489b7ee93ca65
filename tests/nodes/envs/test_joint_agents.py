"""Agents that one policy plays jointly."""

from __future__ import annotations

import threading
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.utils.env_checker import check_env

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.envs.wrappers.episodes import TimeLimit
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.policies.ppo import Ppo
from tests.nodes.env_managers.manager_kinds import KINDS
from tests.nodes.envs.agent_envs import NumberedAgents


def joint_agents(
    *wrappers: Any, reward: str = "sum", limit: int | None = None, **kwargs: Any
) -> Any:
    return PettingZoo(
        id="tests.nodes.envs.agent_envs:NumberedAgents",
        kwargs=kwargs,
        reward=reward,
        max_episode_steps=limit,
        wrappers=wrappers,
    )


def test_agents_are_an_axis_of_observations_and_actions() -> None:
    obs, action = joint_agents().spec()
    assert isinstance(obs, NestedColumns)
    assert obs.columns == {"agents": Column("float32", (3, 2)), "alive": Column("int8", (3,))}
    assert (action, action.high) == (Column("int64", (3,)), (2.0, 2.0, 2.0))
    assert joint_agents(continuous=True).spec()[1] == Column("float32", (3, 2))


@pytest.mark.parametrize("params", [{}, {"masks": True}, {"continuous": True}])
def test_gymnasiums_checker_accepts_joint_agents(params: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*WARN.*")
        check_env(joint_agents(**params).make(0), skip_render_check=True)


@pytest.mark.parametrize(("reward", "each"), [("sum", 1.0), ("mean", 1 / 3)])
def test_the_reward_is_the_sum_or_mean_over_agents(reward: str, each: float) -> None:
    env = joint_agents(reward=reward).make(0)
    env.reset(seed=0)
    assert env.step(np.array([0, 1, 2]))[1] == pytest.approx(3 * each)
    assert env.step(np.array([0, 0, 0]))[1] == pytest.approx(each)


def test_an_agent_without_a_word_about_its_end_is_an_error() -> None:
    env = PettingZoo(
        id="tests.nodes.envs.agent_envs:ScriptedAgents", kwargs={"wrong": "no word about the end"}
    ).make(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="agent b: terminated is None; it must be true or false"):
        env.step(np.zeros((3, 1), np.float32))


def test_an_inactive_agent_is_a_row_of_zeros_and_its_actions_have_no_effect() -> None:
    env = joint_agents(stays=[3, 1, 3]).make(0)
    first, _ = env.reset(seed=0)
    assert first["alive"].tolist() == [1, 1, 1]
    last = env.step(np.array([0, 1, 2]))
    assert last[0]["alive"].tolist() == [1, 0, 1]
    assert last[0]["agents"][1].tolist() == [2, 2]  # its last observation
    later = env.step(np.array([0, 1, 2]))
    assert later[0]["agents"].tolist() == [[1, 3], [0, 0], [3, 3]]
    assert later[1:4] == (2.0, False, False)
    assert env.step(np.array([0, 1, 2]))[1:4] == (2.0, True, False)


@pytest.mark.parametrize(
    ("kwargs", "flags"),
    [
        ({"stays": [2, 2]}, (True, False)),
        ({"stays": [9, 9], "cut_after": 2}, (False, True)),
        ({"stays": [2, 9], "cut_after": 2}, (False, True)),
        ({"stays": [1, 2]}, (True, False)),
    ],
)
def test_an_episode_ends_with_its_last_agent(
    kwargs: dict[str, Any], flags: tuple[bool, bool]
) -> None:
    env = joint_agents(**kwargs).make(0)
    env.reset(seed=0)
    assert env.step(np.zeros(2, np.int64))[2:4] == (False, False)
    assert env.step(np.zeros(2, np.int64))[2:4] == flags


def test_agents_that_are_cut_off_count_as_alive_in_their_last_observation() -> None:
    env = joint_agents(stays=[9, 2, 9], cut_after=2).make(0)
    env.reset(seed=0)
    env.step(np.zeros(3, np.int64))
    last, _, _, truncated, _ = env.step(np.zeros(3, np.int64))
    assert truncated
    assert last["alive"].tolist() == [1, 0, 1]
    assert last["agents"].tolist() == [[1, 3], [2, 3], [3, 3]]


def test_info_has_the_reward_of_each_agent() -> None:
    env = joint_agents(stays=[3, 1, 3]).make(0)
    env.reset(seed=0)
    assert env.step(np.array([0, 1, 0]))[4]["rewards"].tolist() == [1, 1, 0]
    assert env.step(np.array([0, 1, 2]))[4]["rewards"].tolist() == [1, 0, 1]


def test_the_state_of_the_env_is_a_leaf_on_request() -> None:
    part = PettingZoo(id=f"{__name__}:AgentsWithState", state=True)
    obs, _ = part.spec()
    assert isinstance(obs, NestedColumns)
    assert obs.columns["state"] == Column("float32", (2,))
    env = part.make(0)
    assert env.reset(seed=0)[0]["state"].tolist() == [0, 3]
    assert env.step(np.zeros(3, np.int64))[0]["state"].tolist() == [1, 3]
    with pytest.raises(UnsoundError, match="the env has no `state_space`; leave it out"):
        PettingZoo(id="tests.nodes.envs.agent_envs:NumberedAgents", state=True).spec()
    with pytest.raises(ValueError, match="`state` is for `agents: joint`"):
        PettingZoo(id=f"{__name__}:AgentsWithState", agents="shared", state=True)


class AgentsWithState(NumberedAgents):
    """Its state is the time and the number of agents."""

    state_space = Box(0, 99, (2,), np.float32)

    def state(self) -> Any:
        return np.array([self.t, len(self.agents)])


def test_a_limit_and_wrappers_apply_to_all_agents_together() -> None:
    for env in (joint_agents(limit=2), joint_agents(TimeLimit(steps=2))):
        one = env.make(0)
        one.reset(seed=0)
        assert [one.step(np.zeros(3, np.int64))[3] for _ in range(2)] == [False, True]


class OneAtATime(NumberedAgents):
    """Notes whether it is made or closed in two threads at once."""

    busy = threading.Lock()
    overlaps: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self._note("made")

    def close(self) -> None:
        self._note("closed")

    def _note(self, what: str) -> None:
        if not self.busy.acquire(blocking=False):
            self.overlaps.append(what)
            return
        for _ in range(20_000):  # threads may change here
            pass
        self.busy.release()


@pytest.mark.parametrize("agents", ["joint", "shared"])
def test_envs_are_made_and_closed_one_after_another(agents: Any) -> None:
    part = PettingZoo(id=f"{__name__}:OneAtATime", agents=agents)

    def work() -> None:
        for _ in range(10):
            part.make(0).close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert OneAtATime.overlaps == []


class TurnBasedEnv:
    """The part of the interface of turn-based envs that is checked."""

    possible_agents = ("one", "other")
    observation_space = action_space = reset = step = agent_iter = print


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (
            joint_agents(odd="agent_1"),
            r"observations of agent_0 are .*, those of agent_1 .*; put them into groups",
        ),
        (
            PettingZoo(id="tests.nodes.toy_envs:CountingEnv"),
            "has no 'possible_agents'; give an env",
        ),
        (
            PettingZoo(id=f"{__name__}:TurnBasedEnv"),
            "the agents of .*:TurnBasedEnv' act in turn, and with `agents: joint` all act at once; write `ag",
        ),
    ],
)
def test_envs_that_cannot_be_played_jointly_are_refused(env: PettingZoo, what: str) -> None:
    with pytest.raises(UnsoundError, match=what):
        env.spec()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_manager_gives_the_same_steps(kind: str) -> None:
    played = []
    for cls, params in (KINDS["serial"], KINDS[kind]):
        node = cls(config=cls.Config(env=joint_agents(stays=[3, 2, 4]), count=2, **params), seed=1)
        try:
            node.reset()
            rows = [node.advance(np.tile([0, 1, 2], (2, 1))) for _ in range(6)]
            played.append([(r.obs.tobytes(), r.reward.tolist(), list(r.episodes)) for r in rows])
        finally:
            node.close()
    assert played[0] == played[1]


@pytest.mark.slow
def test_one_policy_learns_to_act_for_all_agents_within_their_masks() -> None:
    cls, params = KINDS["serial"]
    envs = cls(config=cls.Config(env=joint_agents(masks=True), count=8, **params), seed=1)
    spec = envs.spec()
    assert isinstance(spec.obs, NestedColumns)
    assert spec.obs.columns["action_mask"] == Column("int8", (9,))
    policy = Ppo(obs=spec.obs, action=spec.action, gamma=0.0, lr=0.01)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=128, seed=1)
    learner = Learner(policy=policy, seed=1)
    for _ in range(30):
        batch = collector.fire(learner.state())
        allowed = batch["obs/action_mask"].reshape(-1, 3, 3)
        taken = np.take_along_axis(allowed, batch["action"][..., None], 2)
        assert taken.all()
        learner.train(batch, 128)
    greedy = policy.eval_mode(0)
    greedy.load(learner.state())
    np.testing.assert_array_equal(greedy.forward(envs.reset())["action"], [[0, 1, 2]] * 8)
