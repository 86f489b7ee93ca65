"""Games of open_spiel give the rows of a plain loop over their states."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Column
from flowrl.core.facts import MissingPackageError, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.match_collector import MatchCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.vector_env_manager import VectorEnvManager
from flowrl.nodes.envs.agent_rows import as_agent_rows
from flowrl.nodes.envs.open_spiel import OpenSpiel
from flowrl.nodes.envs.steps import Episode
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.random import Random
from tests.nodes.env_managers.manager_kinds import OTHERS, steps_are_equal
from tests.nodes.envs.agent_managers import make_manager

pyspiel = pytest.importorskip("pyspiel")

GAMES = ("kuhn_poker", "leduc_poker", "tic_tac_toe", "matrix_mp", "goofspiel", "pig", "catch")
Row = tuple[Any, int, float, Any, bool]


def choose(masks: Any, t: int) -> Any:
    """An allowed action of each row, which depends on the number of the step."""
    return np.array([np.flatnonzero(mask)[t % int(mask.sum())] for mask in masks])


def play_by_definition(name: str, seed: int) -> tuple[list[list[Row]], list[float]]:
    """The rows of each player in one game, and the returns."""
    game = pyspiel.load_game(name)
    kind = game.get_type()
    rng = np.random.default_rng(seed)
    state, players = game.new_initial_state(), range(game.num_players())
    rows: list[list[Row]] = [[] for _ in players]
    begun: dict[int, tuple[Any, int]] = {}
    received = [0.0] * len(players)
    t = 0

    def observe(k: int) -> Any:
        if kind.provides_information_state_tensor:
            return np.float32(state.information_state_tensor(k)).tolist()
        return np.float32(state.observation_tensor(k)).tolist()

    def complete(k: int) -> None:
        if k in begun:
            rows[k].append((*begun.pop(k), received[k], observe(k), state.is_terminal()))
        received[k] = 0.0

    while not state.is_terminal():
        if state.is_chance_node():
            outcomes, odds = zip(*state.chance_outcomes(), strict=True)
            p = np.array(odds)
            before = state.returns()
            state.apply_action(outcomes[rng.choice(len(outcomes), p=p / p.sum())])
        else:
            at_once = state.is_simultaneous_node()
            acting = (
                [k for k in players if state.legal_actions(k)]
                if at_once
                else [state.current_player()]
            )
            for k in acting:
                complete(k)
                legal = sorted(state.legal_actions(k))
                begun[k] = observe(k), legal[t % len(legal)]
            t += 1
            before = state.returns()
            if at_once:
                state.apply_actions([begun[k][1] if k in acting else 0 for k in players])
            else:
                state.apply_action(begun[acting[0]][1])
        received = [
            r + now - then for r, now, then in zip(received, state.returns(), before, strict=True)
        ]
    for k in players:
        complete(k)
    return rows, state.returns()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(GAMES), seed=st.integers(0, 10**6))
def test_a_game_has_the_rows_of_a_loop_over_its_states(name: str, seed: int) -> None:
    manager = SerialEnvManager(env=OpenSpiel(game=name), count=1, seed=seed)
    expected, returns = play_by_definition(name, manager.statistics.next_seed(0))
    envs, n = as_agent_rows(manager), manager.spec().agents
    obs = envs.reset()
    rows: list[list[Row]] = [[] for _ in range(n)]
    begun: dict[int, tuple[Any, int]] = {}
    episodes: list[Episode] = []
    t = 0
    while not episodes:
        actions = choose(obs["action_mask"], t)
        steps = envs.advance(actions)
        for k in np.flatnonzero(steps.acted):
            begun[int(k)] = obs["observation"][k].reshape(-1).tolist(), int(actions[k])
        for k in sorted(set(range(n)) - set(map(int, steps.absent))):
            after = steps.next_obs["observation"][k].reshape(-1).tolist()
            reward = float(steps.reward[k])
            rows[k].append((*begun.pop(k), reward, after, bool(steps.terminated[k])))
        obs, episodes, t = steps.obs, steps.episodes, t + 1
    assert rows == expected
    assert [e.total for e in episodes] == returns


def test_players_at_once_have_a_row_each_in_one_step() -> None:
    envs = as_agent_rows(make_manager(OpenSpiel(game="matrix_mp"), count=2))
    envs.reset()
    steps = envs.advance(np.array([0, 0, 1, 0]))
    assert steps.reward.tolist() == [1, -1, -1, 1]
    assert steps.terminated.all()
    assert len(steps.absent) == 0
    assert [e.length for e in steps.episodes] == [1] * 4


def test_observations_are_what_is_asked_for() -> None:
    for observe, size in (("auto", 11), ("information_state", 11), ("observation", 7)):
        obs: Any = (
            SerialEnvManager(env=OpenSpiel(game="kuhn_poker", observe=observe), count=1).spec().obs
        )
        assert obs.columns["observation"] == Column("float32", (size,), low=-np.inf, high=np.inf)
        assert obs.columns["action_mask"].shape == (2,)
    three = SerialEnvManager(env=OpenSpiel(game="kuhn_poker", params={"players": 3}), count=1)
    assert three.spec().agents == 3


def test_a_limit_truncates_both_players_and_their_masks_allow_all() -> None:
    part = OpenSpiel(game="tic_tac_toe", max_episode_steps=3)
    envs = as_agent_rows(make_manager(part, count=1))
    envs.reset()
    for action in (0, 1, 2):
        steps = envs.advance(np.array([action, action]))
    assert steps.truncated.tolist() == [True, True]
    assert steps.next_obs["action_mask"].tolist() == [[1] * 9, [0, 0, 0, 1, 1, 1, 1, 1, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
def test_every_kind_of_manager_gives_the_same_bits(kind: str) -> None:
    part = OpenSpiel(game="leduc_poker")
    base, other = make_manager(part), make_manager(part, kind)
    try:
        one, two = as_agent_rows(base), as_agent_rows(other)
        obs = one.reset()
        np.testing.assert_array_equal(obs, two.reset())
        for t in range(15):
            actions = choose(obs["action_mask"], t)
            a, b = one.advance(actions), two.advance(actions)
            assert steps_are_equal(a, b)
            obs = a.obs
    finally:
        base.close(), other.close()


@pytest.mark.slow
def test_random_players_of_kuhn_poker_have_its_exact_value() -> None:
    """Against each other, uniform players have an expected return of 1/8 for the first."""
    envs = make_manager(OpenSpiel(game="kuhn_poker"), count=50)
    spec = envs.spec()
    policy = Random(obs=spec.obs, action=spec.action)
    node = SampleCollector(envs=envs, policy=policy, n_sample=2000, origin=True, seed=2)
    rows = node.collect()
    ended = rows["terminated"] & (rows["origin/env"] % 2 == 0)
    game_value = 0.125
    assert rows["reward"][ended].mean() == pytest.approx(game_value, abs=0.15)
    assert np.take_along_axis(rows["obs/action_mask"], rows["action"][:, None], 1).all()


def test_matches_of_a_game_of_turns_have_the_rows_of_the_player_that_learns() -> None:
    envs = make_manager(OpenSpiel(game="kuhn_poker"), count=4)
    spec = envs.spec()
    node = MatchCollector(
        envs=envs, policy=Random(obs=spec.obs, action=spec.action), n_episode=40, seed=0
    )
    rows, results = node.collect(weights=State({}))
    assert results["returns"].sum(1).tolist() == [0.0] * 40
    own = results["returns"][np.arange(40), results["side"]]
    # each match ends with the row in which the player received the pot
    assert sorted(rows["reward"][rows["last"]].tolist()) == sorted(own.tolist())


def test_a_pool_refuses_games() -> None:
    config = VectorEnvManager.Config(env=OpenSpiel(game="kuhn_poker"))
    with pytest.raises(UnsoundError, match="made from an id, and the env is a OpenSpiel"):
        VectorEnvManager(config=config)


def test_a_policy_reads_its_columns() -> None:
    spec = make_manager(OpenSpiel(game="goofspiel")).spec()
    assert Dqn(obs=spec.obs, action=spec.action).masks


def test_an_action_that_is_not_legal_is_an_error() -> None:
    envs = as_agent_rows(make_manager(OpenSpiel(game="tic_tac_toe"), count=1))
    envs.reset()
    envs.advance(np.array([4, 4]))
    with pytest.raises(
        EnvError, match=r"player_1: the action 4 is not legal; legal are 0, 1, 2, 3"
    ):
        envs.advance(np.array([4, 4]))


@pytest.mark.parametrize(
    ("params", "what"),
    [
        (
            {"game": "kuhn_pocker"},
            "open_spiel has no game 'kuhn_pocker'; did you mean 'kuhn_poker'",
        ),
        ({"game": "kuhn_poker", "params": {"players": 99}}, "'kuhn_poker' cannot be made"),
        ({"game": "kuhn_poker", "params": {"colour": 1}}, "'kuhn_poker' cannot be made"),
        (
            {"game": "tic_tac_toe", "observe": "information_state"},
            "'tic_tac_toe' has no tensor of its information_state; write `observe: observation`",
        ),
    ],
)
def test_wrong_settings_are_refused(params: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsoundError, match=what):
        OpenSpiel(**params).spec()


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'flowrl\[open_spiel\]'"):
        OpenSpiel(game="kuhn_poker").spec()
