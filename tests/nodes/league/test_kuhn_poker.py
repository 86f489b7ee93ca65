"""A league of PPO plays Kuhn poker nearly optimally, as open_spiel measures it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Array
from flowrl.core.checkpoint import read_acting
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.open_spiel import OpenSpiel
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.ppo import Ppo

GAME = "kuhn_poker"
# With little entropy, the policy is soon deterministic, and learns nothing about the states that it avoids.
GRAPH: dict[str, Any] = {
    "extends": "cartpole_ppo",
    "env": {"type": "open_spiel", "game": GAME, "id": None},
    "policy": {
        "model": {"type": "mlp", "hidden": [32]},
        "lr": {"start": 0.01, "end": 0.001, "train_iters": 130},
        "entropy_weight": {"start": 0.3, "end": 0.05, "train_iters": 130},
        **{"gamma": 1.0, "gae_lambda": 1.0, "epochs": 4, "minibatch_size": 512},
        **{"clip": 0.5, "normalise_advantages": False},
    },
    "nodes": {
        "envs": {"count": 4},
        "collector": {"type": "match_collector", "n_episode": 1024},
        "league": {
            **{"type": "league", "pfsp": 0.5, "self_play": 0.5, "verification": 0.0},
            **{"most_players": 1000, "snapshot_every_iters": 1, "table": 1024, "decay": 0.98},
        },
        "evaluator": None,
    },
    "edges": [
        "learner -> league.main",
        "collector -> league.main_results",
        "league -> collector.matches",
    ],
}


def strategies(run: Path, states: Any) -> Array:
    """The probabilities of the actions of each version in each information state: (V, S, A)."""
    spec = env_spec(OpenSpiel(game=GAME), 1)
    mode: Any = Ppo(obs=spec.obs, action=spec.action, model=Mlp(hidden=[32])).scoring_mode(0)
    obs = np.zeros(len(states), np.dtype(spec.obs.dtype))
    for k, state in enumerate(states):
        obs["observation"][k] = state.information_state_tensor(state.current_player())
        obs["action_mask"][k] = state.legal_actions_mask()
    found = []
    for path in (run / "league" / "players").glob("main@*"):
        mode.load(read_acting(path)[0])
        scores = mode.forward(obs)["scores"].astype(np.float64)
        chances = np.exp(scores - scores.max(1, keepdims=True))
        found.append(chances / chances.sum(1, keepdims=True))
    return np.array(found)


def mean_strategy(game: Any, lookup: Any, strategies: Array) -> Array:
    """The strategy of a player that draws a version before each game: (S, A).

    In each information state, a version counts by the probability with which its own actions lead there.
    """
    sums = np.zeros(strategies.shape[1:])

    def visit(state: Any, reached: tuple[Array, Array]) -> None:
        if state.is_terminal():
            return
        if state.is_chance_node():
            for action, _ in state.chance_outcomes():
                visit(state.child(action), reached)
            return
        player = state.current_player()
        k = lookup[state.information_state_string(player)]
        sums[k] = (reached[player][:, None] * strategies[:, k]).sum(0)
        for action in state.legal_actions():
            own = reached[player] * strategies[:, k, action]
            visit(state.child(action), (own, reached[1]) if player == 0 else (reached[0], own))

    ones = np.ones(len(strategies))
    visit(game.new_initial_state(), (ones, ones))
    return sums / sums.sum(1, keepdims=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_the_mean_strategy_of_a_league_can_hardly_be_exploited(tmp_path: Path, seed: int) -> None:
    pyspiel = pytest.importorskip("pyspiel")
    from open_spiel.python.algorithms.exploitability import exploitability
    from open_spiel.python.policy import TabularPolicy

    flowrl.load(GRAPH).run(train_iters=130, seed=seed, out=tmp_path / "run", quiet=True)
    game = pyspiel.load_game(GAME)
    policy = TabularPolicy(game)
    of_versions = strategies(tmp_path / "run", policy.states)
    assert exploitability(game, policy) > 0.4  # of random actions
    policy.action_probability_array = mean_strategy(game, policy.state_lookup, of_versions)
    assert exploitability(game, policy) <= 0.1
