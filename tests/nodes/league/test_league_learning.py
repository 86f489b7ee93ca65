"""Opponents by win rates solve a game that plain self-play circles, and exploiters find best responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Array
from flowrl.core.checkpoint import read_acting
from flowrl.nodes.envs.agent_columns import env_spec
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.ppo import Ppo
from tests.nodes.league.games import LARGER, PENNIES, nash_conv
from tests.nodes.league.test_league import GAME

# Logits without a hidden layer, and large steps without clipping: so self-play is plain, and goes in circles.
POLICY: dict[str, Any] = {
    "model": {"type": "mlp", "hidden": []},
    **{"lr": 0.1, "entropy_weight": 0.6, "gamma": 1.0, "epochs": 8, "minibatch_size": 256},
    **{"clip": 10.0, "normalise_advantages": False, "max_grad_norm": None},
}
PFSP = {"pfsp": 1.0, "self_play": 0.0, "verification": 0.0, "most_players": 1000}


def graph(game: str, league: Any = None, policy: Any = None, **collector: Any) -> dict[str, Any]:
    node = {"type": "match_collector", "n_episode": 128, "save_versions": True, **collector}
    env = {"type": "pettingzoo", "id": GAME, "agents": "shared"}
    data: dict[str, Any] = {
        "extends": "cartpole_ppo",
        "env": {**env, "kwargs": {"game": game, "luck": False}},
        "policy": policy or POLICY,
        "nodes": {"envs": {"count": 4}, "collector": node, "evaluator": None},
        "edges": [],
    }
    if league is not None:
        data["nodes"]["league"] = {"type": "league", "table": 128, "decay": 0.98, **league}
        data["edges"] = [
            "learner -> league.main",
            "collector -> league.main_results",
            "league -> collector.matches",
        ]
    return data


def strategies(run: Path, game: str) -> Array:
    """The probabilities of the actions of each version of the main player, on both sides: (V, 2, A)."""
    spec = env_spec(PettingZoo(id=GAME, agents="shared", kwargs={"game": game}), 1)
    mode: Any = Ppo(obs=spec.obs, action=spec.action, model=Mlp(hidden=[])).scoring_mode(0)
    sides = np.zeros((2, 4), np.float32)
    sides[[0, 1], [0, 1]] = 1
    found = {}
    for path in (run / "league" / "players").glob("main@*"):
        state = read_acting(path)[0]
        mode.load(state)
        scores = np.exp(mode.forward(sides)["scores"].astype(np.float64))
        found[state.version] = scores / scores.sum(1, keepdims=True)
    return np.array([found[version] for version in sorted(found)])


@pytest.mark.slow
def test_opponents_by_win_rates_solve_matching_pennies_which_self_play_circles(
    tmp_path: Path,
) -> None:
    """The mean of the strategies of all versions is solved for exactly; that of self-play is not, nor its last one."""
    league = {**PFSP, "snapshot_every_iters": 1}
    for name, data in (("self", graph("pennies")), ("league", graph("pennies", league))):
        flowrl.load(data).run(train_iters=150, out=tmp_path / name, quiet=True)
    of_self, of_league = (strategies(tmp_path / name, "pennies") for name in ("self", "league"))
    assert len(of_self) == len(of_league) == 150
    assert nash_conv(PENNIES, *of_league.mean(0)) <= 0.05
    assert nash_conv(PENNIES, *of_self.mean(0)) > 0.2
    assert nash_conv(PENNIES, *of_self[-1]) > 1


@pytest.mark.slow
def test_an_exploiter_finds_the_best_response_and_begins_again(tmp_path: Path) -> None:
    """The main player does not learn, and names any number. The best response is the largest number."""
    players = {"main": "main", "hunter": "main_exploiter"}
    params = {"snapshot_every_iters": None, "snapshot_win_rate": 0.8, "snapshot_least_iters": 5}
    league = {"players": players, **params}
    policy = {**POLICY, "lr": 0.03, "entropy_weight": 0.0}
    data = graph("larger", league, policy, player="main")
    data["nodes"] |= {
        "learner": {"policy": {"lr": 0.0}},
        "more": {"type": "env_manager", "count": 4},
        "hunting": {**data["nodes"]["collector"], "player": "hunter"},
        "hunter": {"type": "learner"},
    }
    data["edges"] += [
        "hunting <-> more",
        "hunting -> hunter",
        "hunter.weights -> hunting.weights",
        "league -> hunting.matches",
        "hunter -> league.hunter",
        "hunting -> league.hunter_results",
        "league.hunter_resets -> hunter.resets",
    ]
    flowrl.load(data).run(train_iters=40, out=tmp_path / "run", quiet=True)
    lines = (tmp_path / "run/league/players.jsonl").read_text().splitlines()
    kept = [row for row in map(json.loads, lines) if row["name"] == "hunter"]
    assert len(kept) >= 3
    assert {row["parent"] for row in kept[1:]} == {"hunter@0"}
    lines = (tmp_path / "run/league/payoff.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["player"] == "hunter"]
    best = (LARGER[-1].mean() + 1) / 2  # the score of the largest number against any number
    scores = {row["version"]: [] for row in rows}  # type: ignore[var-annotated]
    for row in rows:
        if row["opponent"] == "main":
            scores[row["version"]].append(row["score"])
    means = {version: np.mean(of_one) for version, of_one in scores.items() if of_one}
    for version in (kept[1]["version"], kept[2]["version"]):
        assert means[version] > best - 0.1
        begun_again = next(v for v in sorted(means) if v > version + 1)
        assert means[begun_again] < means[version] - 0.05
