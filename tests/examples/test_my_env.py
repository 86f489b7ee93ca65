"""The example of your own env keeps gymnasium's rules, and errors name its location in the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

from flowrl.api import load

GRAPH = Path(__file__).parents[2] / "examples" / "my_env" / "corridor.yaml"


@pytest.fixture
def corridor(monkeypatch: Any) -> Any:
    """The env's class, imported as by the graph beside it."""
    monkeypatch.syspath_prepend(str(GRAPH.parent))
    return __import__("corridor").Corridor


def test_the_env_keeps_the_rules_of_gymnasium(corridor: Any) -> None:
    check_env(corridor(), skip_render_check=True)


def test_walking_to_the_right_ends_at_the_goal(corridor: Any) -> None:
    env = corridor(length=3)
    env.reset(seed=1)
    env.position = 0
    assert env.step(0)[0].tolist() == [0.0]  # the wall at the left
    steps = [env.step(1) for _ in range(3)]
    assert [step[2] for step in steps] == [False, False, True]
    assert [round(step[1], 2) for step in steps] == [-0.01, -0.01, 0.99]
    assert not any(step[3] for step in steps)


def test_the_graph_solves_the_env(tmp_path: Path) -> None:
    result = load(GRAPH).run(train_iters=1000, out=tmp_path / "run")
    assert result.status == "solved"
    assert result.eval_return is not None
    assert result.eval_return > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "place", "message"),
    [
        (
            "{id: 'corridor:Coridor'}",
            "2:7",
            "'corridor' has no 'Coridor'; did you mean 'corridor:Corridor'?",
        ),
        (
            "{id: 'no_such:Env'}",
            "2:7",
            "cannot import 'no_such': No module named 'no_such'; correct ",
        ),
        (
            "{id: 'json:JSONDecoder', kwargs: null}",
            "2:7",
            "'json:JSONDecoder' belongs to Python's standard library; name a class or ",
        ),
        ("{id: 'corridor:Corridor', kwargs: {size: 3}}", "2:1", "the env cannot be made: TypeE"),
    ],
)
def test_a_wrong_env_is_the_only_problem_and_has_its_location(
    section: str, place: str, message: str, tmp_path: Path, corridor: Any
) -> None:
    graph = tmp_path / "mine.yaml"
    graph.write_text(f"extends: {GRAPH}\nenv: {section}\n")
    [problem] = load(graph).check().problems
    assert str(problem).partition(message)[0] == f"{graph}:{place}: env: "


@pytest.mark.slow
def test_processes_import_modules_beside_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # not the graph's folder
    serial = load(GRAPH).run(train_iters=20, out="s")
    other = load(GRAPH).run(train_iters=20, out="p", placement="collector=process")
    assert other.digest == serial.digest
    resolved = load("p/graph.yaml").run(train_iters=20, out="again")
    assert resolved.digest == serial.digest
