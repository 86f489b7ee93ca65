"""The env that requires memory keeps gymnasium's rules, and its graph solves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

from flowrl.api import load

GRAPH = Path(__file__).parents[2] / "examples" / "my_memory" / "maze.yaml"


@pytest.fixture
def maze(monkeypatch: Any) -> Any:
    """The env's class, imported as by the graph beside it."""
    monkeypatch.syspath_prepend(str(GRAPH.parent))
    return __import__("maze").Maze


def test_the_env_keeps_the_rules_of_gymnasium(maze: Any) -> None:
    check_env(maze(), skip_render_check=True)


@pytest.mark.parametrize("seed", range(4))
def test_the_sign_is_visible_once_and_shows_the_rewarded_turn(maze: Any, seed: int) -> None:
    env = maze(length=3)
    first, _ = env.reset(seed=seed)
    right = int(first[0] > 0)
    steps = [env.step(action) for action in (0, 1, 1 - right)]
    assert [step[0].tolist() for step in steps] == [[0, 0], [0, 0], [0, 1]]
    assert [step[1:3] for step in steps] == [(0.0, False)] * 3
    assert env.step(right)[1:3] == (1.0, True)


@pytest.mark.exhaustive
def test_the_graph_solves_the_env(tmp_path: Path) -> None:
    result = load(GRAPH).run(train_iters=2000, out=tmp_path / "run")
    assert result.status == "solved"


def test_check_requires_stored_memory(tmp_path: Path) -> None:
    """The sequences are shorter than the maze, so without stored memory the sign would be forgotten."""
    checked = load(GRAPH, {"buffer.memory_columns": []}).check()
    assert any("memory" in problem.what for problem in checked.problems)
