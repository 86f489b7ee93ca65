"""Games of two fixed policies: each side acts with its own, with fresh memory in each episode, and from given seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.context import Context
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.greedy_policy import GreedyPolicy
from flowrl.nodes.league import two_sided_games
from flowrl.nodes.league.two_sided_games import MOST_ENVS, TwoSidedGames
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policy import Policy
from tests.toys.two_sided_games import LargestNumber

SEED = 3


class Player(Policy):
    """Names the largest number, except in the first steps of each episode; with `explores`, at random."""

    acts_without_weights = True

    class Config(BaseConfig):
        wrong_steps: int = param(0, "the first steps of an episode, in which it names the smallest")

    def memory_columns(self) -> Schema:
        return {"steps": Column("float32")}

    def eval_mode(self, seed: int) -> Any:
        return PlayerMode(self.config.wrong_steps)

    def collect_mode(self, seed: int) -> Any:
        return RandomMode(seed)


class PlayerMode:
    memory = {"steps": Column("float32")}

    def __init__(self, wrong_steps: int) -> None:
        self._wrong_steps = wrong_steps

    def load(self, state: State) -> None:
        pass

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        wrong = memory["steps"] < self._wrong_steps
        action = np.where(wrong, obs.argmin(-1), obs.argmax(-1))
        return {"action": action, "steps": memory["steps"] + 1}


class RandomMode:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def load(self, state: State) -> None:
        pass

    def forward(self, obs: Array) -> dict[str, Array]:
        return {"action": self._rng.integers(0, 3, len(obs))}


def game_env(**params: Any) -> PettingZoo:
    id = "tests.toys.two_sided_games:LargestNumber"
    return PettingZoo(id=id, agents="shared", **params)


def player(wrong_steps: int = 0, choices: int = 3) -> GreedyPolicy:
    obs, action = Column("float32", (choices,)), Column("int64", n=choices)
    return GreedyPolicy(Player(obs=obs, action=action, wrong_steps=wrong_steps))


def slow_games(
    games: int, wrong_steps: tuple[int, int]
) -> list[tuple[int, tuple[float, float], int]]:
    """The seed, the returns and the length of each game, in the order of envs and then of time."""
    count = min(games, MOST_ENVS)
    seeds = EpisodeStatistics(count, Context("tournament", seed=SEED).seed_for("episodes"), False)
    found = []
    for index in range(count):
        for k in range(games // count + (index < games % count)):
            env = LargestNumber()
            seed = seeds.next_seed(index, ahead=k)
            observed, _ = env.reset(seed=seed)
            returns, t = [0.0, 0.0], 0
            while env.agents:
                numbers = observed["first"]
                choices = [numbers.argmin() if t < w else numbers.argmax() for w in wrong_steps]
                observed, rewards, *_ = env.step(dict(zip(env.agents, choices, strict=True)))
                returns = [r + reward for r, reward in zip(returns, rewards.values(), strict=True)]
                t += 1
            found.append((seed, (returns[0], returns[1]), t))
    return found


@pytest.mark.parametrize("games", [1, 7, 23])
@pytest.mark.parametrize("wrong_steps", [(0, 2), (3, 1), (2, 2)])
def test_games_equal_a_plain_loop_over_episodes(games: int, wrong_steps: tuple[int, int]) -> None:
    played = TwoSidedGames(game_env(), games, SEED)
    results = played.play(player(wrong_steps[0]), player(wrong_steps[1]), "0/1")
    assert results == slow_games(games, wrong_steps)
    again = played.play(player(wrong_steps[1]), player(wrong_steps[0]), "1/0")
    assert [game.returns for game in again] == [game.returns[::-1] for game in results]


def test_all_pairs_play_the_same_episodes() -> None:
    games = TwoSidedGames(game_env(), 12, SEED, explores=True)
    first = games.play(player(), player(), "0/1")
    assert games.play(player(), player(), "0/2") != first
    assert games.play(player(), player(), "0/1") == first
    assert TwoSidedGames(game_env(), 12, SEED, True).play(player(), player(), "0/1") == first
    assert TwoSidedGames(game_env(), 12, SEED + 1, True).play(player(), player(), "0/1") != first


@pytest.mark.filterwarnings("ignore:The old environment")
def test_sides_take_turns_in_turn_based_games() -> None:
    """Both sides have an episode in each game, of which one acts a step less."""
    env = PettingZoo(id="pettingzoo.classic.tictactoe_v3:env", agents="shared")
    games = TwoSidedGames(env, 6, SEED, explores=True)
    policy = GreedyPolicy(Random(obs=games.spec.obs, action=games.spec.action))
    played = games.play(policy, policy, "0/1")
    assert len(played) == 6
    for game in played:
        assert game.returns in ((1, -1), (-1, 1), (0, 0))
        assert 5 <= game.length <= 9
        assert game.returns != (0, 0) or game.length == 9
    assert games.play(policy, policy, "0/1") == played


def test_a_game_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_sided_games, "MOST_STEPS", 4)
    with pytest.raises(ValueError, match="a game has not ended after 4 steps; give the env `max_"):
        TwoSidedGames(game_env(), 1).play(player(), player(), "0/1")


def test_an_env_with_another_number_of_sides_is_refused() -> None:
    with pytest.raises(UnsoundError, match="one row of actions in each step; a game has two sides"):
        TwoSidedGames(Gymnasium(id="CartPole-v1"), 1)


def test_a_policy_of_other_spaces_is_refused() -> None:
    games = TwoSidedGames(game_env(), 1)
    games.require_fit(player())
    with pytest.raises(UnsoundError, match=r"maps float32\[4\] to .* observes float32\[3\]"):
        games.require_fit(player(choices=4))
    games.close()
