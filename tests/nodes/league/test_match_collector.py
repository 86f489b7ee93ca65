"""The match collector: who plays whom, with which random numbers, and what is learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.match_collector import MatchCollector
from flowrl.nodes.collectors.match_results import scores
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.league.matches import ITSELF, Assignment, matches_state
from flowrl.nodes.league.replay import replay_matches
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policy import Policy
from tests.nodes.env_managers.manager_kinds import KINDS
from tests.nodes.league import games

GAME = "tests.nodes.league.games:MatrixGame"
RULE = "tests.nodes.league.test_match_collector:Counting"


class Counting(Policy):
    """In the k-th round of a match it takes the action k + w mod 3; `logp` is k. It remembers k."""

    class Config(BaseConfig):
        gamma: float = param(0.5, "discount")
        w: int = param(0, "its weight, if it gets none", ge=0)

    def memory_columns(self) -> Schema:
        return {"memory": Column("float32", (1,))}

    def collect_columns(self) -> Schema:
        return {"action": self.action, "logp": Column("float32")}

    def learn_columns(self) -> Schema:
        return {}

    def collect_mode(self, seed: int) -> Any:
        return CountingMode(self.config.w)


class Scripted(Counting):
    """It keeps the weight of its config."""

    acts_without_weights = True


class CountingMode:
    memory = {"memory": Column("float32", (1,))}

    def __init__(self, w: int) -> None:
        self.w = w

    def load(self, state: State) -> None:
        self.w = int(state.arrays["w"][0])

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        k = memory["memory"][:, 0]
        action = (k.astype(np.int64) + self.w) % 3
        return {"action": action, "logp": k.copy(), "memory": memory["memory"] + 1}


def weights_of(w: int, version: int = 0) -> State:
    return State({"w": np.array([w], np.float32)}, version=version)


def make_envs(kind: str = "serial", count: int = 3, seed: int = 1, **kwargs: Any) -> Any:
    manager_class, defaults = KINDS[kind]
    retries = {"max_retry": 1000, "retry_waiting_time_s": 0.0} if kwargs.get("fails") else {}
    env = PettingZoo(id=GAME, agents="shared", kwargs=kwargs)
    config = manager_class.Config(env=env, count=count, **{**defaults, **retries})
    return manager_class(config=config, context=Context("envs", seed=seed))


def make_collector(envs: Any = None, policy: Any = Counting, **params: Any) -> MatchCollector:
    envs = envs or make_envs(rounds=3)
    spec = (envs[0] if isinstance(envs, list) else envs).spec()
    given = policy if isinstance(policy, Policy) else policy(obs=spec.obs, action=spec.action)
    return MatchCollector(envs=envs, policy=given, **params)


def scripted(spec: Any, *ws: int) -> list[Policy]:
    return [Scripted(obs=spec.obs, action=spec.action, w=w) for w in ws]


def table(*rows: tuple[int, int, int], weights: Mapping[tuple[int, int], State] = {}) -> State:
    return matches_state({"main": [Assignment(*row) for row in rows]}, weights)


def test_a_token_has_the_described_columns() -> None:
    node = make_collector(n_episode=5)
    known = Surroundings({}, {"envs": node.envs.spec()}, frozenset({"data", "results"}))
    facts = MatchCollector.describe(node.config, known)
    data, results = node.fire(weights_of(0)).values()
    assert facts.outs["data"] == dict(data.schema)
    assert facts.outs["results"] == dict(results.schema)
    assert (len(data), len(results)) == (15, facts.rows["results"])
    assert node.ctx.take_count() == (15, 5, 0)


def test_without_a_league_the_player_plays_against_itself_from_both_sides_in_turn() -> None:
    node = make_collector(n_episode=3)
    tokens = [node.fire(weights_of(2, version)) for version in (7, 8)]
    results = Batch.concat([token["results"] for token in tokens])
    assert results["side"].tolist() == [0, 1, 0, 1, 0, 1]
    assert set(results["opponent"]) == {ITSELF}
    assert results["version"].tolist() == results["opponent_version"].tolist() == [7] * 3 + [8] * 3
    assert results["score"].tolist() == [0.5] * 6
    for token in tokens:
        side = token["data"]["obs"][:, :2].argmax(1).reshape(3, 3)
        assert sorted(side[:, 0]) == sorted(token["results"]["side"])
        assert (side == side[:, :1]).all()


def test_only_the_rows_of_the_player_are_given_with_their_rewards_and_ends() -> None:
    node = make_collector(n_episode=1, opponents=scripted(make_envs().spec(), 1))
    first = node.collect(weights=weights_of(0), matches=table((-2, 0, 0)))
    # rock against paper, paper against scissors, scissors against rock: it always loses
    data, results = first
    assert data["action"].tolist() == [0, 1, 2]
    assert data["reward"].tolist() == [-1, -1, -1]
    assert data["last"].tolist() == data["terminated"].tolist() == [False, False, True]
    assert data["offset"].tolist() == [0, 1, 2]
    assert results["returns"].tolist() == [[-3, 3]]
    assert (results["score"][0], results["length"][0]) == (0, 3)
    data, results = node.collect(weights=weights_of(2), matches=table((-2, 0, 1)))
    assert data["reward"].tolist() == [1, 1, 1]
    assert (results["score"][0], results["side"][0]) == (1, 1)


def test_players_stay_in_their_seats_for_a_whole_match_and_remember_nothing_of_others() -> None:
    """The k-th action of a match shows who acts, and how many steps of the match it remembers."""
    weights = {(0, 5): weights_of(1), (0, 9): weights_of(2)}
    rows = [(0, 5, 0), (-2, 0, 1), (0, 9, 1), (ITSELF, 0, 0), (0, 5, 1)]
    opponents = scripted(make_envs().spec(), 1)
    node = make_collector(make_envs(rounds=4, count=2), n_episode=len(rows), opponents=opponents)
    games.PLAYED.clear()
    _, results = node.collect(weights=weights_of(0), matches=table(*rows, weights=weights))
    played = dict(games.PLAYED)
    w = {(0, 5): 1, (0, 9): 2, (-2, 0): 1, (ITSELF, 0): 0}
    for (opponent, version, side), seed in zip(rows, results["seed"], strict=True):
        chosen = np.array(played[int(seed)])
        assert chosen[:, side].tolist() == [0, 1, 2, 0]
        assert chosen[:, 1 - side].tolist() == [(k + w[opponent, version]) % 3 for k in range(4)]


def test_a_swap_in_the_middle_of_a_match_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above is not empty: with a swap, the actions of a match are others."""
    node = make_collector(
        make_envs(rounds=4, count=1), n_episode=1, opponents=scripted(make_envs().spec(), 1)
    )
    step = node._actor.step

    def swapping(ids: Array | None) -> Any:
        stepped = step(ids)
        if len(games.PLAYED[-1][1]) == 2:
            node._bind(0, Assignment(ITSELF, 0, 0), 0)
        return stepped

    monkeypatch.setattr(node._actor, "step", swapping)
    games.PLAYED.clear()
    node.collect(weights=weights_of(2), matches=table((-2, 0, 0)))
    assert [pair[1] for pair in games.PLAYED[0][1]] != [1, 2, 0, 1]


def ppo_collector(envs: Any, **params: Any) -> tuple[MatchCollector, list[State]]:
    """A collector of a policy that draws its actions, with two versions of its weights."""
    policy = Ppo(obs=envs.spec().obs, action=envs.spec().action)
    found = []
    for seed in (0, 1):
        state = Learner(policy=policy, seed=seed).state()
        found.append(State(state.arrays, state.command, version=seed))
    return make_collector(envs, policy=policy, **params), found


def test_a_match_is_played_again_from_its_seed_and_the_weights_of_its_players() -> None:
    """The result, and every action, do not depend on the other matches that were played meanwhile."""
    envs = make_envs(rounds=5, count=3)
    opponents: Any = [Random(obs=envs.spec().obs, action=envs.spec().action)]
    rows = [(0, 0, 0), (-2, 0, 1), (0, 0, 1), (ITSELF, 1, 0)]
    node, (old, new) = ppo_collector(envs, n_episode=20, opponents=opponents)
    games.PLAYED.clear()
    _, results = node.collect(weights=new, matches=table(*rows, weights={(0, 0): old}))
    played = dict(games.PLAYED)
    assert len({str(played[int(seed)]) for seed in results["seed"]}) > 15
    for k in np.random.default_rng(0).permutation(20).tolist():
        games.PLAYED.clear()
        match = Assignment(*rows[k % 4]), int(results["seed"][k])
        again = replay_matches(envs.part, node.config, [match], new, {(0, 0): old})
        assert games.PLAYED[0] == (match[1], played[match[1]])
        assert all(np.array_equal(again[name][0], results[name][k]) for name in again)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "sync", "sync, pre-reset", "thread"])
def test_a_failed_match_is_played_again_with_another_seed(kind: str) -> None:
    envs = make_envs(kind, rounds=3, fails=0.2)
    node = make_collector(envs, n_episode=20)
    try:
        data, results = node.fire(weights_of(1)).values()
    finally:
        envs.close()
    assert len(results) == 20
    assert results["length"].tolist() == [3] * 20
    assert len(set(results["seed"].tolist())) == 20
    assert data["logp"].tolist() == [0, 1, 2] * 20


def test_the_envs_of_several_managers_are_numbered_on() -> None:
    both = make_collector([make_envs(rounds=2, seed=1), make_envs(rounds=2, seed=2)], n_episode=12)
    alone = [make_collector(make_envs(rounds=2, seed=seed), n_episode=6) for seed in (1, 2)]
    _, results = both.fire(weights_of(1)).values()
    seeds = [node.fire(weights_of(1))["results"]["seed"].tolist() for node in alone]
    assert results["seed"].tolist() == seeds[0] + seeds[1]


def test_a_loaded_collector_goes_on_with_the_same_matches() -> None:
    envs = make_envs(rounds=3)
    node, (_, weights) = ppo_collector(envs, n_episode=5)
    node.fire(weights)
    state, of_envs = node.state_dict(), envs.state_dict()
    expected = [node.fire(weights) for _ in range(2)]
    envs = make_envs(rounds=3, seed=5)
    other, _ = ppo_collector(envs, n_episode=5)
    envs.load_state_dict(of_envs)
    other.load_state_dict(state)
    for token in expected:
        found = other.fire(weights)
        for name, batch in token.items():
            assert all(np.array_equal(batch[c], found[name][c]) for c in batch)


def test_teams_are_the_agents_in_order() -> None:
    node = make_collector(make_envs(sides=4, rounds=2, count=1), n_episode=2)
    data, results = node.fire(weights_of(0)).values()
    assert len(data) == 8
    assert node._match_mode.seats[0] is not None
    assert results["returns"].shape == (2, 2)


def test_the_highest_return_wins_and_equal_ones_are_a_draw() -> None:
    returns = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [2.0, 2.0, 2.0]])
    assert scores(returns, np.array([0, 0, 2, 1])).tolist() == [1, 0.5, 0, 0.5]
    assert scores(returns, np.array([1, 1, 1, 1])).tolist() == [0, 0.5, 0.5, 0.5]


def test_a_match_that_does_not_end_is_an_error() -> None:
    node = make_collector(make_envs(rounds=9), most_steps=4)
    with pytest.raises(ValueError, match="env 0: a match has not ended after 4 steps; give the"):
        node.fire(weights_of(0))


def test_a_player_that_outputs_another_shape_is_an_error() -> None:
    class Wrong(CountingMode):
        def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
            return {**super().forward(obs, memory), "action": np.zeros((1, 2), np.int64)}

    class WrongPolicy(Scripted):
        def collect_mode(self, seed: int) -> Any:
            return Wrong(0)

    envs = make_envs()
    opponents = [WrongPolicy(obs=envs.spec().obs, action=envs.spec().action)]
    node = make_collector(envs, opponents=opponents)
    what = r"the player 'wrongpolicy \(opponent 1\)' outputs an action as int64\[1, 2\]"
    with pytest.raises(ValueError, match=what):
        node.collect(weights=weights_of(0), matches=table((-2, 0, 0)))


def test_an_env_of_one_agent_is_refused_by_check() -> None:
    node = {"type": "match_collector"}
    graph = flowrl.load({"extends": "cartpole_ppo", "nodes": {"collector": node}})
    [problem] = [str(problem) for problem in graph.check().problems]
    assert "a match needs an env whose agents act by themselves" in problem
    assert "agents: shared" in problem


@pytest.mark.parametrize(
    ("sides", "params", "message"),
    [
        (3, {}, "3 agents of an env are not 2 teams of equal size; give `sides: 3`, or an env"),
        (2, {"sides": 4}, "2 agents of an env are not 4 teams of equal size"),
    ],
)
def test_unequal_teams_are_refused(sides: int, params: Any, message: str) -> None:
    with pytest.raises(UnsoundError, match=message):
        make_collector(make_envs(sides=sides), **params)


def test_an_opponent_without_weights_is_refused() -> None:
    envs = make_envs()
    opponents = [Ppo(obs=envs.spec().obs, action=envs.spec().action)]
    with pytest.raises(UnsoundError, match="the opponent ppo needs weights, which nothing gives"):
        make_collector(envs, opponents=opponents)


class CountingInUnrolls(Counting):
    """It learns from unrolls."""

    class Config(Counting.Config):
        unroll_steps: int = param(4, "steps of an unroll")
        burn_in_steps: int = param(0, "steps that an unroll shares with the one before")
        nstep: int = param(1, "rewards that are summed")


def unroll_collector(envs: Any = None, **settings: Any) -> MatchCollector:
    envs = envs or make_envs(rounds=3)
    spec = envs.spec()
    policy = CountingInUnrolls(obs=spec.obs, action=spec.action, **settings)
    return make_collector(envs, policy=policy, n_episode=5)


def test_unrolls_are_cut_from_one_match_after_another() -> None:
    """Five matches of three rounds are 15 steps: three unrolls of four, and three steps that wait."""
    node = unroll_collector()
    known = Surroundings({}, {"envs": node.envs.spec()}, frozenset({"data", "results"}))
    facts = MatchCollector.describe(node.config, known)
    tokens = [node.fire(weights_of(0, version))["data"] for version in (1, 2)]
    assert [len(token) for token in tokens] == [3, 4]  # 15 - 3 * 4 + 15 = 18 = 4 * 4 + 2
    assert facts.outs["data"] == dict(tokens[0].schema)
    data = Batch.concat(tokens)
    assert data["logp"].reshape(-1).tolist() == [k % 3 for k in range(28)]
    assert (data["offset"] == data["logp"]).all()
    assert (data["memory"][:, 0] == data["logp"][:, 0]).all()
    is_end = data["logp"] == 2
    assert (data["terminated"] == is_end).all()
    is_end[:, -1] = True
    assert (data["last"] == is_end).all()
    assert node.ctx.take_count().env_steps == 28


def test_unrolls_of_matches_may_begin_with_steps_of_the_unroll_before() -> None:
    node = unroll_collector(burn_in_steps=1)
    data = node.fire(weights_of(0))["data"]
    assert data["logp"].tolist() == [[0, 1, 2, 0], [0, 1, 2, 0], [0, 1, 2, 0], [0, 1, 2, 0]]
    node = unroll_collector(burn_in_steps=2)
    data = node.fire(weights_of(0))["data"]
    assert data["logp"][:3].tolist() == [[0, 1, 2, 0], [2, 0, 1, 2], [1, 2, 0, 1]]


def test_a_loaded_collector_goes_on_with_the_steps_that_wait() -> None:
    envs = make_envs(rounds=3)
    node = unroll_collector(envs)
    node.fire(weights_of(0))
    state, of_envs = node.state_dict(), envs.state_dict()
    expected = node.fire(weights_of(1))["data"]
    envs = make_envs(rounds=3, seed=5)
    other = unroll_collector(envs)
    envs.load_state_dict(of_envs)
    other.load_state_dict(state)
    found = other.fire(weights_of(1))["data"]
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_matches_that_fill_no_unroll_are_an_error() -> None:
    node = unroll_collector(unroll_steps=16)
    with pytest.raises(ValueError, match="15 steps of the player, and an unroll has 16; give the"):
        node.fire(weights_of(0))
    with pytest.raises(UnsoundError, match="learns from unrolls, whose rewards nothing sums"):
        unroll_collector(nstep=3)


def test_the_matches_of_a_recurrent_network_are_played_again() -> None:
    """Its memory, and that of its opponents, begin anew with each match."""
    envs = make_envs(rounds=5, count=2)
    spec, found = envs.spec(), []
    policy = Ppo(obs=spec.obs, action=spec.action, model=Gru(size=8), unroll_steps=5)
    for seed in (0, 1):
        state = Learner(policy=policy, seed=seed).state()
        found.append(State(state.arrays, state.command, version=seed))
    old, new = found
    node = make_collector(envs, policy=policy, n_episode=10)
    games.PLAYED.clear()
    data, results = node.collect(weights=new, matches=table((0, 0, 0), weights={(0, 0): old}))
    played = dict(games.PLAYED)
    assert data["action"].shape == (10, 5)
    assert not data["memory"].any()  # each unroll is a whole match
    for k in (9, 4, 0):
        games.PLAYED.clear()
        match = Assignment(0, 0, 0), int(results["seed"][k])
        replay_matches(envs.part, node.config, [match], new, {(0, 0): old})
        assert games.PLAYED[0] == (match[1], played[match[1]])


def test_matches_of_turns_have_the_moves_of_the_player_and_are_played_again() -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe.tictactoe", exc_type=ImportError)
    env = PettingZoo(id="pettingzoo.classic.tictactoe.tictactoe:env", agents="shared")
    config = KINDS["serial"][0].Config(env=env, count=3)
    envs = KINDS["serial"][0](config=config, context=Context("envs", seed=1))
    node, (_, weights) = ppo_collector(envs, n_episode=10)
    data, results = node.collect(weights=weights)
    moves = np.diff(np.flatnonzero(np.append(data["offset"] == 0, True)))
    sides = np.sort(results["side"])
    assert sides.tolist() == [0] * 5 + [1] * 5
    first, second = (results["length"] + 1) // 2, results["length"] // 2
    assert sorted(moves) == sorted(np.where(results["side"] == 0, first, second))
    last = data["reward"][data["last"]]
    assert sorted(last) == sorted(results["returns"][np.arange(10), results["side"]])
    assert {0, 1} <= set(results["score"].tolist())
    for k in range(10):
        match = Assignment(ITSELF, 1, int(results["side"][k])), int(results["seed"][k])
        again = replay_matches(env, node.config, [match], weights, {})
        assert all(np.array_equal(again[name][0], results[name][k]) for name in again)
