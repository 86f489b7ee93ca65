"""A league whose main player is a PPO with memory, and whose exploiter is a DQN."""

from __future__ import annotations

from typing import Any

from tests.nodes.league.test_league import league_graph

DQN = {"type": "dqn", "nstep": 1, "model": {"type": "mlp", "hidden": [6]}}
PPO = {"model": {"type": "gru", "size": 8}, "unroll_steps": 5, "epochs": 2}


def mixed_league(**more: Any) -> dict[str, Any]:
    """The graph, of which `more` are other sections."""
    own = {"player": "main", "policies": {"hunter": DQN}}
    collector = {**own, "n_episode": 10, "save_versions": True}
    league = {"players": {"main": "main", "hunter": "main_exploiter"}}
    data = league_graph(collector, league, policy=PPO, **more)
    data["nodes"] |= {
        "more": {"type": "env_manager", "count": 4},
        "hunting": {**data["nodes"]["collector"], "player": "hunter"},
        "rows": {
            **{"type": "naive_buffer", "size": 200, "batch_size": 16, "updates_per_push": 2},
            "policy": DQN,
        },
        "hunter": {"type": "learner", "policy": DQN},
    }
    data["edges"] = [
        "learner -> league.main",
        "collector -> league.main_results",
        "league -> collector.matches",
        "hunting <-> more",
        "hunting -> rows",
        "rows -> hunter",
        "hunter.weights -> hunting.weights",
        "league -> hunting.matches",
        "hunter -> league.hunter",
        "hunting -> league.hunter_results",
        "league.hunter_resets -> hunter.resets",
    ]
    return data
