"""Agents in groups: which belong to which, and the rows of each group in every kind of env manager."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.collectors.grouped_envs import GroupedEnvs
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.agent_rows import as_agent_rows
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.policies.random import Random
from tests.nodes.env_managers.manager_kinds import OTHERS, steps_are_equal
from tests.nodes.envs.group_envs import PASTURE, make_manager, pasture
from tests.nodes.envs.turn_envs import RANDOM_TURNS

TEAM = {"wolves": {"names": ["wolf_*"], "agents": "joint"}, "sheep": ["sheep_0"]}


def test_each_group_has_columns_and_rows_of_its_own() -> None:
    spec = env_spec(pasture(), 4)
    wolves, sheep = spec.groups["wolves"], spec.groups["sheep"]
    assert (wolves.obs, wolves.action) == (Column("float32", (4,)), Column("int64", n=3))
    assert sheep.obs == Column("float32", (3,))
    assert (wolves.count, wolves.agents, sheep.count, sheep.agents) == (8, 2, 4, 1)
    assert spec.count == 4
    # two actions of wolves and one of the sheep, of a type that holds both
    assert spec.action == Column("float64", (3,))


def test_groups_by_spaces_have_the_names_of_their_agents() -> None:
    assert list(env_spec(pasture("spaces"), 1).groups) == ["wolf", "sheep"]


class NumberedNames(PettingZoo):
    """Agents whose names begin alike, and whose spaces differ."""

    def _make_env(self, index: int) -> Any:
        env = super()._make_env(index)
        env.possible_agents = ["1", "2"]
        spaces = env.observation_space
        env.observation_space = lambda agent: spaces("wolf" if agent == "1" else "sheep")
        return env


def test_groups_by_spaces_without_names_of_their_own_are_refused() -> None:
    env = NumberedNames(id=PASTURE, agents={"groups": "spaces"})
    with pytest.raises(UnsoundError) as refused:
        env_spec(env, 1)
    assert refused.value.what == (
        "1 have equal spaces, and their names give their group no name of its own"
    )
    assert refused.value.hint == "name the groups: `agents: {groups: {NAME: [AGENT, …], …}}`"


@pytest.mark.parametrize(
    ("groups", "what"),
    [
        (
            {"wolves": ["wolf_*"]},
            "agent sheep_0 is in no group; add it to one, or make one for it; a group may have the policy `random`",
        ),
        (
            {"all": ["*"]},
            "the agents of the group all differ: the observations of wolf_0 are Box(-inf, inf, (4,), float32), those "
            "of sheep_0 Box(-inf, inf, (3,), float32); put them into different groups",
        ),
        (
            {"wolves": ["wolf_*", "cat_*"], "sheep": ["sheep_*"]},
            "the group wolves names 'cat_*', and no agent of the env has such a name; its agents are wolf_0, wolf_1, "
            "sheep_0",
        ),
        (
            {"wolves": ["wolf_*"], "first": ["wolf_0"], "sheep": ["sheep_0"]},
            "agent wolf_0 is in the groups wolves and first; name it in one of them",
        ),
        (
            {"sheep_0": {"names": ["wolf_*"], "agents": "joint"}, "sheep": ["sheep_0"]},
            "the team sheep_0 has the name of an agent of another group; give the group another name",
        ),
    ],
)
def test_wrong_groups_are_refused(groups: Any, what: str) -> None:
    with pytest.raises(UnsoundError) as refused:
        env_spec(pasture(groups), 1)
    assert str(refused.value) == what
    assert refused.value.key == "env.agents"


@pytest.mark.parametrize(
    ("agents", "what"),
    [
        ({"groups": {}}, "agents.groups: {} names no groups; write `{NAME: [AGENT, …]}`, or"),
        ({"groups": {"a": []}}, "agents.groups: the group a is []; expected names of agents, such"),
        ({"groups": {"a-b": ["*"]}}, "agents.groups: 'a-b' is no name of letters, digits and _"),
        ({"group": "spaces"}, "'spaces'} is neither joint, nor shared, nor {groups: …}"),
        (
            {"groups": {"a": {"names": ["*"], "state": True}}},
            "agents.groups: `state` of a group is for `agents: joint`; leave it out",
        ),
    ],
)
def test_settings_that_name_no_groups_are_refused(agents: Any, what: str) -> None:
    with pytest.raises(ValueError, match=re.escape(what)) as refused:
        PettingZoo(id=PASTURE, agents=agents)
    assert "\n" not in str(refused.value)


def test_nodes_with_one_policy_refuse_groups() -> None:
    envs = make_manager(pasture())
    policy = Random(obs=Column("float32", (4,)), action=Column("int64", n=3))
    what = r"the agents of the env are in groups \(wolves, sheep\), and this node has one policy"
    with pytest.raises(UnsoundError, match=what):
        SampleCollector(envs=envs, policy=policy)
    with pytest.raises(UnsoundError, match=what):
        Evaluator(env=pasture(), policy=policy)


def advance(envs: GroupedEnvs, wolves: Any, sheep: Any) -> dict[str, Any]:
    """Step all envs with these actions of each group's agents."""
    actions = {"wolves": np.array(wolves), "sheep": np.array(sheep, np.float32)[:, None]}
    for name, rows in envs.rows.items():
        rows.send(np.arange(rows.spec().count), actions[name])
    return {name: rows.recv(np.arange(rows.spec().count))[1] for name, rows in envs.rows.items()}


def test_agents_leave_and_return_in_the_rows_of_their_group() -> None:
    envs = GroupedEnvs(make_manager(pasture(), count=1))
    envs.reset()
    first = {name: rows.reset() for name, rows in envs.rows.items()}
    assert first["wolves"][:, 1:].tolist() == [[0, 0, 0], [0, 1, 0]]
    assert first["sheep"][:, 1:].tolist() == [[0, 0]]
    table: dict[str, list[Any]] = {"wolves": [], "sheep": []}
    ended: list[tuple[str, Episode]] = []
    for _ in range(6):
        for name, steps in advance(envs, [1, 1], [0.5]).items():
            acted = sorted(set(range(len(steps.reward))) - {*map(int, steps.absent)})
            table[name].append([(k, float(steps.reward[k])) for k in acted])
            ended += [(name, episode) for episode in steps.episodes]
    # wolf 0 is rewarded for the action 1, and wolf 1 is not; each reward has t added
    assert table["wolves"] == [
        [(0, 1), (1, 0)],
        [(0, 2), (1, 1)],
        [(0, 3), (1, 2)],
        [(1, 3)],
        [(0, 5), (1, 4)],
        [(0, 6)],
    ]
    assert table["sheep"] == [[(0, 1)], [(0, 2)], [], [(0, 4)], [(0, 5)], [(0, 6)]]
    assert ended == [
        ("sheep", Episode(0, 3.0, 2)),
        ("wolves", Episode(0, 6.0, 3)),
        ("wolves", Episode(1, 10.0, 5)),
        ("wolves", Episode(0, 11.0, 2)),
        ("sheep", Episode(0, 15.0, 3)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("groups", [None, TEAM])
def test_every_kind_of_manager_gives_the_same_bits(kind: str, groups: Any) -> None:
    base, other = make_manager(pasture(groups)), make_manager(pasture(groups), kind)
    wolves = [[1, 2], [0, 1]] if groups else [1, 2, 0, 1]
    try:
        one, two = GroupedEnvs(base), GroupedEnvs(other)
        for envs in (one, two):
            envs.reset()
        for name in one.rows:
            np.testing.assert_array_equal(one.rows[name].reset(), two.rows[name].reset())
        for _ in range(15):
            a, b = advance(one, wolves, [0.25, -1]), advance(two, wolves, [0.25, -1])
            assert all(steps_are_equal(a[name], b[name]) for name in a)
    finally:
        base.close(), other.close()


def test_several_managers_are_joined_group_by_group() -> None:
    one = GroupedEnvs(make_manager(pasture(), count=3))
    several = GroupedEnvs([make_manager(pasture(), count=1), make_manager(pasture(), count=2)])
    for envs in (one, several):
        envs.seed(7)
        envs.reset()
    assert several.spec().groups["wolves"].count == 6
    for name in one.rows:
        np.testing.assert_array_equal(one.rows[name].reset(), several.rows[name].reset())
    for _ in range(8):
        found = [advance(envs, [0, 1, 2, 0, 1, 2], [1, 0, -1]) for envs in (one, several)]
        assert all(steps_are_equal(found[0][name], found[1][name]) for name in found[0])


def test_managers_whose_groups_differ_are_not_joined() -> None:
    other = make_manager(pasture({"sheep": ["sheep_*"], "wolves": ["wolf_*"]}))
    with pytest.raises(UnsoundError, match="env managers differ"):
        GroupedEnvs([make_manager(pasture()), other])


def test_an_agent_that_vanishes_is_an_error_of_its_env() -> None:
    envs = GroupedEnvs(make_manager(pasture(game=["w0 w1 s0"] * 4, wrong="vanishes"), count=1))
    envs.reset()
    advance(envs, [0, 0], [0])
    with pytest.raises(EnvError, match="agent sheep_0 is not active any more, but was neither"):
        advance(envs, [0, 0], [0])


def test_an_action_that_its_column_cannot_hold_is_refused() -> None:
    envs = GroupedEnvs(make_manager(pasture(), count=1))
    envs.reset()
    with pytest.raises(ValueError, match=r"the actions are float64\[\]; expected int64"):
        envs.rows["wolves"].send(np.arange(2), np.array([0.5, 1.0]))


def test_a_limit_truncates_the_episodes_of_all_groups() -> None:
    envs = GroupedEnvs(make_manager(pasture(limit=2, game=["w0 w1 s0"] * 4), count=1))
    envs.reset()
    advance(envs, [0, 0], [0])
    found = advance(envs, [0, 0], [0])
    assert found["wolves"].truncated.all()
    assert found["sheep"].truncated.all()


def test_a_team_is_one_row_with_an_axis_of_agents() -> None:
    spec = env_spec(pasture(TEAM), 2)
    wolves = spec.groups["wolves"]
    leaves = {"agents": Column("float32", (2, 4)), "alive": Column("int8", (2,))}
    assert wolves.obs.columns == leaves  # type: ignore[union-attr]
    assert (wolves.action.shape, wolves.count, wolves.agents) == ((2,), 2, 1)
    envs = GroupedEnvs(make_manager(pasture(TEAM), count=1))
    envs.reset()
    rewards, alive, ends = [], [], []
    for _ in range(6):
        steps = advance(envs, [[1, 2]], [0])["wolves"]
        rewards.append(float(steps.reward[0]))
        alive.append(steps.next_obs["alive"][0].tolist())
        ends.append((bool(steps.terminated[0]), bool(steps.truncated[0])))
    # both wolves choose what is rewarded; each one that acts adds 1 + t
    assert rewards == [2, 4, 6, 4, 10, 6]
    assert alive == [[1, 1], [1, 1], [0, 1], [1, 1], [1, 0], [1, 0]]
    assert ends == [(False, False)] * 5 + [(False, True)]


def test_a_team_that_leaves_has_another_episode_when_it_returns() -> None:
    game = ["w0 w1 s0", "s0", "w1 s0", "s0"]
    envs = GroupedEnvs(make_manager(pasture(TEAM, game=game), count=1))
    envs.reset()
    found = [advance(envs, [[0, 0]], [0])["wolves"] for _ in range(4)]
    assert [bool(steps.terminated[0]) for steps in found] == [True, False, True, False]
    assert [[*map(int, steps.absent)] for steps in found] == [[], [0], [], [0]]
    assert [e.length for steps in found for e in steps.episodes] == [1, 1]


def test_groups_of_agents_that_act_in_turn_have_the_rows_of_agents_that_share_a_policy() -> None:
    groups = {"first": ["agent_1"], "others": ["agent_0", "agent_2"]}
    shared = PettingZoo(id=RANDOM_TURNS, agents="shared", kwargs={"masks": True})
    grouped = PettingZoo(id=RANDOM_TURNS, agents={"groups": groups}, kwargs={"masks": True})
    one = as_agent_rows(make_manager(shared, count=1))
    two = GroupedEnvs(make_manager(grouped, count=1))
    rows_of = {"first": [1], "others": [0, 2]}
    obs = one.reset()
    two.reset()
    firsts = {name: rows.reset() for name, rows in two.rows.items()}
    rng = np.random.default_rng(3)
    for _ in range(40):
        for name, rows in rows_of.items():
            np.testing.assert_array_equal(firsts[name], obs[rows])
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in obs["action_mask"]])
        for name, rows in rows_of.items():
            two.rows[name].send(np.arange(len(rows)), actions[rows])
        steps = one.advance(actions)
        for name, rows in rows_of.items():
            own = two.rows[name].recv(np.arange(len(rows)))[1]
            for column in ("reward", "terminated", "truncated", "next_obs", "acted"):
                whole = getattr(steps, column)[rows]
                np.testing.assert_array_equal(getattr(own, column), whole, err_msg=column)
            absent = [k for k, row in enumerate(rows) if row in steps.absent]
            assert [*map(int, own.absent)] == absent
            firsts[name] = own.obs
        obs = steps.obs


def test_a_team_cannot_act_in_turn() -> None:
    groups = {"all": {"names": ["agent_*"], "agents": "joint"}}
    env = PettingZoo(id=RANDOM_TURNS, agents={"groups": groups})
    with pytest.raises(
        UnsoundError,
        match="act in turn, and those of a team at once: all; leave `agents: joint` of",
    ):
        env_spec(env, 1)
