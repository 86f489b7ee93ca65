"""The algorithm of docs/algorithms.md is that of the example. It learns; `check` tells what it cannot learn from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flowrl.api import load

ROOT = Path(__file__).parents[2]
GRAPH = ROOT / "examples" / "my_algorithm" / "cartpole.yaml"


def test_the_page_shows_the_file_of_the_example() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"```python\n# baseline\.py\n(.*?)```", page, re.S)
    assert (GRAPH.parent / "baseline.py").read_text(encoding="utf-8").endswith(shown)
    assert 'type: "baseline:Baseline"' in page
    assert 'type: "baseline:Baseline"' in GRAPH.read_text(encoding="utf-8")


def test_it_has_the_same_digest_in_threads(tmp_path: Path) -> None:
    sets = {"collector.n_episode": 2, "evaluator.episodes": 2}
    runs = [
        load(GRAPH, sets).run(placement=place, train_iters=3, out=tmp_path / place)
        for place in ("serial", "threads")
    ]
    assert runs[0].digest == runs[1].digest


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        ({"env.id": "Pendulum-v1"}, "baseline chooses one of n actions"),
        ({"policy.model.type": "gru"}, "the model is recurrent"),
        ({"collector.weights.lag": 1}, "is stale (lag 1)"),
    ],
)
def test_what_it_cannot_learn_from_is_told(sets: dict[str, Any], problem: str) -> None:
    checked = load(GRAPH, sets).check()
    found = [*checked.problems, *checked.warnings]
    assert any(problem in str(one) for one in found), found


@pytest.mark.slow
def test_it_solves_cartpole(tmp_path: Path) -> None:
    assert load(GRAPH).run(out=tmp_path / "run").status == "solved"
