"""Players with policies of their own: each acts with its policy, its weights and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.match_collector import MatchCollector
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.league.matches import Assignment, matches_state
from flowrl.nodes.league.replay import replay_matches
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policy import Policy
from tests.nodes.env_managers.manager_kinds import KINDS
from tests.nodes.league import games
from tests.nodes.league.test_match_collector import Counting, make_envs, weights_of

PAIR = {"memory": Column("float32", (2,))}


class Doubling(Counting):
    """In the k-th round of a match it takes the action 2k + w mod 3. Its columns have shapes of their own."""

    def memory_columns(self) -> Schema:
        return PAIR

    def collect_columns(self) -> Schema:
        return {"action": self.action, "logp": Column("float64", (5,))}

    def collect_mode(self, seed: int) -> Any:
        return DoublingMode()


class DoublingMode:
    memory = PAIR

    def load(self, state: State) -> None:
        self.w = int(state.arrays["w"][0])

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        k = memory["memory"]
        action = (k.sum(1).astype(np.int64) + self.w) % 3
        return {"action": action, "logp": np.full((len(obs), 5), k[:, :1]), "memory": k + 1}


def make_collector(player: str, **params: Any) -> MatchCollector:
    """A collector of `player` where `main` is `Counting` and `hunter` is `Doubling`."""
    envs = make_envs(rounds=4, count=2)
    spec = envs.spec()
    policy, hunter = (kind(obs=spec.obs, action=spec.action) for kind in (Counting, Doubling))
    return MatchCollector(
        envs=envs, policy=policy, policies={"hunter": hunter}, player=player, **params
    )


def table(player: str, *rows: tuple[int, int, int], **weights: int) -> State:
    """The matches of a player, and the weight of each version that plays in them (`main_5=1`)."""
    numbers = {"main": 0, "hunter": 1}
    tables = {n: [Assignment(*row) for row in rows] if n == player else [] for n in numbers}
    known = {}
    for name, w in weights.items():
        owner, _, version = name.partition("_")
        known[numbers[owner], int(version)] = weights_of(w, int(version))
    return matches_state(tables, known)


@pytest.mark.parametrize("player", ["main", "hunter"])
def test_each_player_acts_with_its_policy_its_weights_and_its_memory(player: str) -> None:
    """The k-th action of a match shows whose policy acts, with which weights, and how many steps it remembers."""
    rows = [(0, 5, 0), (1, 6, 1), (0, 9, 1), (1, 7, 0)]
    weights = {"main_5": 1, "main_9": 2, "hunter_6": 0, "hunter_7": 1}
    node = make_collector(player, n_episode=4)
    games.PLAYED.clear()
    _, results = node.collect(weights=weights_of(2), matches=table(player, *rows, **weights))
    played = dict(games.PLAYED)
    factors = {"main": 1, "hunter": 2}
    for (opponent, version, side), seed in zip(rows, results["seed"], strict=True):
        name = ["main", "hunter"][opponent]
        chosen = np.array(played[int(seed)])
        own = [(factors[player] * k + 2) % 3 for k in range(4)]
        other = [(factors[name] * k + weights[f"{name}_{version}"]) % 3 for k in range(4)]
        assert chosen[:, side].tolist() == own
        assert chosen[:, 1 - side].tolist() == other


@pytest.mark.parametrize("player", ["main", "hunter"])
def test_the_rows_of_a_token_are_those_of_the_policy_of_its_player(player: str) -> None:
    node = make_collector(player, n_episode=2)
    known = Surroundings({}, {"envs": node.envs.spec()}, frozenset({"data", "results"}))
    facts = MatchCollector.describe(node.config, known)
    matches = table(player, (0, 5, 0), (1, 6, 1), main_5=1, hunter_6=0)
    data, _ = node.collect(weights=weights_of(0), matches=matches)
    assert dict(data.schema) == facts.outs["data"]
    assert data["logp"].shape[1:] == ((), (5,))[player == "hunter"]
    assert data["memory"][:, 0].tolist() == [0, 1, 2, 3] * 2


def test_the_matches_of_players_with_other_policies_are_played_again() -> None:
    node = make_collector("main", n_episode=6)
    rows, weights = [(1, 6, 1), (0, 5, 0), (1, 6, 0)], {"main_5": 1, "hunter_6": 2}
    games.PLAYED.clear()
    _, results = node.collect(weights=weights_of(2), matches=table("main", *rows, **weights))
    played = dict(games.PLAYED)
    known = {(0, 5): weights_of(1, 5), (1, 6): weights_of(2, 6)}
    for k in (5, 1, 2):
        games.PLAYED.clear()
        match = Assignment(*rows[k % 3]), int(results["seed"][k])
        players = ("main", "hunter")
        again = replay_matches(
            node.envs.envs.part, node.config, [match], weights_of(2), known, players
        )
        assert games.PLAYED[0] == (match[1], played[match[1]])
        assert all(np.array_equal(again[name][0], results[name][k]) for name in again)


class FirstMove(Policy):
    """Takes the first move that is allowed, and remembers how many it has taken in the match."""

    acts_without_weights = True

    def memory_columns(self) -> Schema:
        return {"moves": Column("float32")}

    def collect_mode(self, seed: int) -> Any:
        return FirstMoveMode()


class FirstMoveMode:
    memory = {"moves": Column("float32")}

    def load(self, state: State) -> None:
        """It has no weights."""

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        moves = memory["moves"]
        MOST_MOVES.append(float(moves.max()))
        return {"action": obs["action_mask"].argmax(1), "moves": moves + 1}


MOST_MOVES: list[float] = []


def test_where_sides_act_in_turn_an_opponent_remembers_its_own_turns_only() -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe.tictactoe", exc_type=ImportError)
    env = PettingZoo(id="pettingzoo.classic.tictactoe.tictactoe:env", agents="shared")
    config = KINDS["serial"][0].Config(env=env, count=1)
    envs = KINDS["serial"][0](config=config, context=Context("envs", seed=1))
    columns = {"obs": envs.spec().obs, "action": envs.spec().action}
    node = MatchCollector(envs=envs, policy=Random(**columns), opponents=[FirstMove(**columns)])
    for side in (0, 1):
        MOST_MOVES.clear()
        matches = matches_state({"main": [Assignment(-2, 0, side)]}, {})
        _, results = node.collect(n_episode=1, matches=matches)
        steps = int(results["length"][0])
        of_opponent = steps // 2 if side == 0 else (steps + 1) // 2
        assert max(MOST_MOVES) in (of_opponent - 1, of_opponent)


def test_policies_of_players_need_the_player_of_the_collector_and_weights() -> None:
    envs = make_envs()
    columns = {"obs": envs.spec().obs, "action": envs.spec().action}
    own, other = Counting(**columns), Doubling(**columns)
    with pytest.raises(UnsoundError, match="does not say for which player it plays; give it `pla"):
        MatchCollector(envs=envs, policy=own, policies={"hunter": other})
    policies = {"hunter": Random(**columns)}
    with pytest.raises(UnsoundError, match="the player hunter: random takes no weights, and the"):
        MatchCollector(envs=envs, policy=own, policies=policies, player="main")
