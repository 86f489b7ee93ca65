"""Agents that act in turn: a row is complete when its agent acts again or its episode has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.facts import UnsoundError
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.agent_rows import as_agent_rows
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.envs.turn_based import Turn, TurnBasedEnv
from flowrl.nodes.envs.wrappers.frame_stack import FrameStack
from flowrl.nodes.envs.wrappers.leaves import Previous
from flowrl.nodes.envs.wrappers.rewards import RewardClip
from tests.nodes.env_managers.manager_kinds import KINDS, OTHERS, steps_are_equal
from tests.nodes.envs.agent_managers import make_manager
from tests.nodes.envs.turn_envs import (
    FIXED_TURNS,
    RANDOM_TURNS,
    PlayedGame,
    RandomTurns,
    Row,
    play_by_definition,
)


def turns(
    *wrappers: Any,
    limit: int | None = None,
    id: str = RANDOM_TURNS,
    info: Any = None,
    **kwargs: Any,
) -> PettingZoo:
    """An env part; `kwargs` are those of the env."""
    return PettingZoo(
        id=id,
        agents="shared",
        kwargs=kwargs,
        wrappers=wrappers,
        max_episode_steps=limit,
        info=info or {},
    )


def act(k: int, obs: Any) -> int:
    """An action that depends on everything that is observed."""
    if isinstance(obs, dict):
        return int(np.argmax(obs["action_mask"]))
    return int(obs.sum()) % 3


def choose(obs: Any) -> Any:
    """The actions of all rows."""
    if obs.dtype.names:
        return obs["action_mask"].argmax(1)
    return obs.sum(1).astype(np.int64) % 3


def play_game(part: PettingZoo, seed: int) -> PlayedGame:
    """Play one game in an env, and take its records apart as `AgentRows` does."""
    manager = SerialEnvManager(env=part, count=1, seed=seed)
    envs, n = as_agent_rows(manager), manager.spec().agents
    obs = envs.reset()
    rows: dict[int, list[Row]] = {k: [] for k in range(n)}
    begun: dict[int, Any] = {}
    episodes: dict[int, tuple[float, int]] = {}
    while len(episodes) < n:
        actions = choose(obs)
        steps = envs.advance(actions)
        for k in np.flatnonzero(steps.acted):
            begun[k] = plain(obs[k]), int(actions[k])
        for k in sorted(set(range(n)) - set(map(int, steps.absent))):
            ends = bool(steps.terminated[k]), bool(steps.truncated[k])
            reward = float(steps.reward[k])
            rows[k].append(Row(*begun.pop(k), reward, plain(steps.next_obs[k]), *ends))
        episodes |= {e.env_id: (e.total, e.length) for e in steps.episodes}
        obs = steps.obs
    assert not begun
    return PlayedGame(rows, episodes)


def plain(obs: Any) -> Any:
    return obs["observation"].tolist() if getattr(obs.dtype, "names", None) else obs.tolist()


def plain_rows(played: PlayedGame) -> PlayedGame:
    """The rows of the definition as lists."""

    def listed(obs: Any) -> Any:
        return (obs["observation"] if isinstance(obs, dict) else obs).tolist()

    rows = {
        k: [r._replace(obs=listed(r.obs), next_obs=listed(r.next_obs)) for r in of]
        for k, of in played.rows.items()
    }
    return played._replace(rows=rows)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    agents=st.integers(1, 4),
    death=st.sampled_from([0.05, 0.2, 0.6]),
    again=st.sampled_from([0.0, 0.5]),
    dead_first=st.booleans(),
    masks=st.booleans(),
    limit=st.sampled_from([None, 1, 4, 9]),
)
def test_random_games_have_the_rows_of_the_plain_definition(
    seed: int,
    agents: int,
    death: float,
    again: float,
    dead_first: bool,
    masks: bool,
    limit: int | None,
) -> None:
    kwargs: Any = {"agents": agents, "death": death, "again": again}
    kwargs |= {"dead_first": dead_first, "masks": masks}
    part = turns(limit=limit, **kwargs)
    found = play_game(part, seed)
    env_seed = SerialEnvManager(env=part, count=1, seed=seed).statistics.next_seed(0)
    expected = play_by_definition(RandomTurns(**kwargs), env_seed, act, limit)
    assert found == plain_rows(expected)


def fixed(order: str, **kwargs: Any) -> PlayedGame:
    return play_game(turns(id=FIXED_TURNS, order=order, **kwargs), 0)


def test_the_reward_of_a_row_is_what_the_agent_received_until_its_next_turn() -> None:
    played = fixed("aabab", count=2)
    assert [row.reward for row in played.rows[0]] == [1, 2, 2]  # agent a acts twice at first
    assert [row.reward for row in played.rows[1]] == [20, 10]
    # what agent b received before its first turn counts for its return alone
    assert played.episodes == {0: (5, 3), 1: (50, 2)}


def test_the_loser_gets_its_last_reward_without_acting_again() -> None:
    played = fixed("aba")
    assert [(row.reward, row.terminated) for row in played.rows[1]] == [(20, True)]
    assert [(row.reward, row.terminated) for row in played.rows[0]] == [(2, False), (1, True)]
    assert played.rows[1][0].next_obs[1] == 3  # it observes the end of the game


def test_an_agent_that_never_acts_has_an_episode_without_a_row() -> None:
    played = fixed("aa")
    assert played.rows[1] == []
    assert played.episodes == {0: (2, 2), 1: (20, 0)}


@pytest.mark.parametrize(
    ("end", "flags"),
    [("terminated", (True, False)), ("truncated", (False, True)), ("both", (True, True))],
)
def test_the_flags_of_the_last_rows_are_those_of_the_env(
    end: str, flags: tuple[bool, bool]
) -> None:
    played = fixed("abab", end=end)
    assert [rows[-1][-2:] for rows in played.rows.values()] == [flags, flags]
    assert [rows[0][-2:] for rows in played.rows.values()] == [(False, False)] * 2


def test_a_limit_counts_steps_of_the_env_and_truncates_all_agents() -> None:
    played = play_game(turns(id=FIXED_TURNS, order="ababab", limit=3), 0)
    assert {k: [row.truncated for row in rows] for k, rows in played.rows.items()} == {
        0: [False, True],
        1: [True],
    }
    assert played.episodes == {0: (3, 2), 1: (30, 1)}


def test_only_the_agent_whose_turn_it_is_observes_something_to_act_on() -> None:
    envs = as_agent_rows(make_manager(turns(id=FIXED_TURNS, order="abab"), count=1))
    seen = [envs.reset()]
    seen += [envs.advance(np.zeros(2, np.int64)).obs for _ in range(3)]
    assert [obs.tolist() for obs in seen] == [
        [[0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [1, 1, 1]],
        [[0, 2, 2], [0, 0, 0]],
        [[0, 0, 0], [1, 3, 3]],
    ]


def test_masks_of_agents_that_do_not_act_allow_everything() -> None:
    part = turns(id=FIXED_TURNS, order="abab", masks=True, end="truncated")
    envs = as_agent_rows(make_manager(part, count=1))
    assert envs.reset()["action_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    steps = envs.advance(np.zeros(2, np.int64))
    assert steps.obs["action_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    for action in (2, 2, 1):
        steps = envs.advance(np.full(2, action))
    assert steps.truncated.all()
    assert steps.next_obs["action_mask"].all()  # the env's own allow nothing


def test_wrappers_belong_to_agents_and_see_their_steps() -> None:
    part = turns(FrameStack(n=2), RewardClip(low=-1, high=15), id=FIXED_TURNS, order="abab")
    envs = as_agent_rows(make_manager(part, count=1))
    envs.reset()
    steps = [envs.advance(np.zeros(2, np.int64)) for _ in range(4)]
    # the game's step in both frames of the agent to act: its last turn, and this one
    assert steps[1].obs[0, :, 1].tolist() == [0, 2]
    assert steps[2].obs[1, :, 1].tolist() == [1, 3]
    assert steps[3].reward.tolist() == [2, 10]
    assert steps[2].reward.tolist() == [0, 15]
    assert steps[3].episodes == [Episode(0, 4.0, 2), Episode(1, 40.0, 2)]


def test_the_last_action_is_observed_at_the_next_turn() -> None:
    envs = as_agent_rows(make_manager(turns(Previous(), id=FIXED_TURNS, order="abab"), count=1))
    envs.reset()
    envs.advance(np.array([2, 0]))
    steps = envs.advance(np.array([1, 1]))
    assert steps.obs["last_action"][0] == 2
    assert steps.obs["last_reward"][0] == 2


def test_info_is_that_of_the_turn_that_completes_the_row() -> None:
    part = turns(id=FIXED_TURNS, order="abab", info={"t": "float32"})
    envs = as_agent_rows(make_manager(part, count=1))
    envs.reset()
    found = [envs.advance(np.zeros(2, np.int64)) for _ in range(4)]
    completed = [set(range(2)) - set(map(int, steps.absent)) for steps in found]
    assert completed == [set(), {0}, {1}, {0, 1}]
    assert [s.info["t"][k] for s, of in zip(found, completed, strict=True) for k in of] == [
        2,
        3,
        4,
        4,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_every_kind_of_manager_gives_the_same_bits(kind: str) -> None:
    part = turns(masks=False)
    base, other = make_manager(part), make_manager(part, kind)
    try:
        one, two = as_agent_rows(base), as_agent_rows(other)
        obs = one.reset()
        np.testing.assert_array_equal(obs, two.reset())
        for _ in range(25):
            a, b = one.advance(choose(obs)), two.advance(choose(obs))
            assert steps_are_equal(a, b)
            np.testing.assert_array_equal(a.acted, b.acted)
            obs = a.obs
    finally:
        base.close(), other.close()


def test_an_unfinished_game_is_saved_and_continues_with_the_same_bits() -> None:
    one, two = (make_manager(turns(death=0.02)) for _ in range(2))
    rows, others = as_agent_rows(one), as_agent_rows(two)
    rows.reset()
    for _ in range(3):
        rows.advance(np.ones(6, np.int64))
    two.load_state_dict(one.state_dict())
    for _ in range(20):
        a, b = rows.advance(np.ones(6, np.int64)), others.advance(np.ones(6, np.int64))
        assert steps_are_equal(a, b)


class ScriptedGame:
    """A game whose turns are given."""

    possible_agents = ("a", "b")

    def __init__(self, *turns: Any) -> None:
        self.turns = [[Turn(agent, 0, 0.0, over, False, {}) for agent, over in of] for of in turns]

    def observation_space(self, agent: str) -> Any:
        from gymnasium.spaces import Discrete

        return Discrete(2)

    action_space = observation_space

    def reset(self, seed: Any, options: Any) -> Any:
        return self.turns.pop(0)

    def step(self, actions: Any) -> Any:
        return self.turns.pop(0)

    cut = render = close = list


@pytest.mark.parametrize(
    ("turns", "what"),
    [
        ([[]], "no agent acts after the reset"),
        ([[("c", False)]], "agent c acts and is not one of the env's possible_agents"),
        ([[("a", False), ("a", False)]], "agent a has two turns in one step"),
    ],
)
def test_games_that_break_the_rules_are_errors(turns: Any, what: str) -> None:
    env = TurnBasedEnv(ScriptedGame(*turns), (), None)
    with pytest.raises(ValueError, match=what):
        env.reset(seed=0)


def test_an_agent_may_begin_another_episode_in_the_same_game() -> None:
    a, b = ("a", False), ("b", False)
    game = ScriptedGame([a], [("a", True), b], [a, b], [("a", True), ("b", True)])
    env = TurnBasedEnv(game, (), None)
    env.reset(seed=0)
    found = [env.step(np.zeros(2, np.int64)) for _ in range(3)]
    assert [r["completed"].tolist() for r, *_ in found] == [[1, 0], [0, 1], [1, 1]]
    assert [r["length"].tolist() for r, *_ in found] == [[1, 0], [0, 1], [1, 2]]
    assert [over for _, _, over, _, _ in found] == [False, False, True]


def test_a_game_that_fails_is_an_error_that_names_it() -> None:
    envs = as_agent_rows(make_manager(turns(fails=1.0), count=1))
    envs.reset()
    with pytest.raises(EnvError, match="the game fell over"):
        envs.advance(np.zeros(3, np.int64))


class Incomplete:
    """Has the name of a turn-based env's method, and too little else."""

    possible_agents = ("one",)
    observation_space = action_space = reset = step = agent_iter = print


def test_an_env_without_the_turn_based_interface_is_refused() -> None:
    part = PettingZoo(id=f"{__name__}:Incomplete", agents="shared")
    with pytest.raises(UnsoundError, match="has no 'last'; give an env with PettingZoo's AEC int"):
        part.spec()


@pytest.mark.parametrize("kind", ["serial", *KINDS])
def test_launched_games_are_played_by_hand(kind: str) -> None:
    envs = make_manager(turns(id=FIXED_TURNS, order="aba"), kind, count=1)
    try:
        envs.launch(episodes=1)
        found = []
        while not envs.done:
            for i, step in envs.step(dict.fromkeys(envs.ready_obs, 0)).items():
                found += [] if step.absent else [(i, step.reward, step.done)]
        assert found == [(0, 2, False), (0, 1, True), (1, 20, True)]
    finally:
        envs.close()


def test_a_video_shows_a_game(tmp_path: Path) -> None:
    from flowrl.core.config import PartSpec
    from flowrl.nodes.evaluators.evaluator import Evaluator
    from tests.nodes.toy_policies import Toy, weights

    node = Evaluator(
        env=turns(id=FIXED_TURNS, order="abab"),
        policy=PartSpec("toy", Toy, Toy.Config()),
        episodes=2,
    )
    files = node.record_videos(weights(0), tmp_path / "game.gif")
    assert [file.name for file in files] == ["game.gif"]


def test_a_forbidden_move_ends_a_game_of_tictactoe_for_both_players() -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe.tictactoe", exc_type=ImportError)
    part = PettingZoo(id="pettingzoo.classic.tictactoe.tictactoe:env", agents="shared")
    manager = make_manager(part, count=1)
    envs = as_agent_rows(manager)
    envs.reset()
    steps = envs.advance(np.array([4, 0]))
    assert steps.obs["action_mask"][1].tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    steps = envs.advance(np.array([0, 4]))  # the field is taken
    assert steps.reward.tolist() == [0, -1]
    assert steps.terminated.tolist() == [True, True]
    assert steps.episodes == [Episode(0, 0.0, 1), Episode(1, -1.0, 1)]
    manager.close()
