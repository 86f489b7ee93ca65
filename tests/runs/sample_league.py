"""Writes the files of a league whose players have known strengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

GENERATIONS, STEP = 4, 100  # versions of the main player between two that the league keeps
SELF_PLAY = 0.2  # the share of matches against itself

PLAYERS: list[dict[str, Any]] = [
    {"name": "main", "version": 0, "kind": "main", "parent": None, "firing": 0},
    {"name": "hunter", "version": 0, "kind": "main_exploiter", "parent": "main@0", "firing": 0},
    {"name": "random", "version": 0, "kind": "scripted", "parent": None, "firing": 0},
    *(
        {
            "name": "main",
            "version": STEP * k,
            "kind": "historical",
            "parent": f"main@{STEP * (k - 1)}",
            "firing": 10 * k,
        }
        for k in range(1, GENERATIONS + 1)
    ),
]


def strength(name: str, version: int) -> float:
    return {"main": version / STEP * 0.5, "hunter": 0.7, "random": -1.5}[name]


def sample_rows(matches: int = 600, seed: int = 0) -> list[dict[str, Any]]:
    """Matches of the main player, whose version rises with each, against what the league has kept so far."""
    rng, rows = np.random.default_rng(seed), []
    for k in range(matches):
        version = int(k / matches * STEP * (GENERATIONS + 0.5))
        kept = [("main", STEP * g) for g in range(version // STEP + 1)]
        opponents = [*kept, ("hunter", 0), ("random", 0)]
        name, other = opponents[rng.integers(len(opponents))]
        if rng.random() < SELF_PLAY:
            name, other = "main", version
        half = (strength("main", version) - strength(name, other)) / 2
        weights = np.exp([half, -1.5, -half])
        score = float(rng.choice([1.0, 0.5, 0.0], p=weights / weights.sum()))
        rows.append(
            {
                "player": "main",
                "version": version,
                "opponent": name,
                "opponent_version": other,
                "side": k % 2,
                "seed": int(rng.integers(2**31)),
                "score": score,
                "returns": [score, 1 - score] if k % 2 == 0 else [1 - score, score],
                "length": 9,
                "firing": k // 8,
            }
        )
    return rows


def write_league(
    run: Path, rows: list[dict[str, Any]] | None = None, players: Any = PLAYERS
) -> Path:
    """Write the files of a league into a run's folder."""
    folder = run / "league"
    folder.mkdir(parents=True, exist_ok=True)
    (run / "graph.yaml").touch()
    for name, found in (("payoff", sample_rows() if rows is None else rows), ("players", players)):
        text = "".join(json.dumps(row) + "\n" for row in found)
        (folder / f"{name}.jsonl").write_text(text)
    return run
