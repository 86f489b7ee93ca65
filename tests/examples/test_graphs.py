"""The example graphs, and the README that lists them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from flowrl.api import load

EXAMPLES = Path(__file__).parents[2] / "examples"
GRAPHS = sorted(EXAMPLES.rglob("*.yaml"))
PACKAGES = {"cologne": "sumo_rl"}  # that a graph needs, and that `dev` does not install
SLOW = {
    "cologne": 2,
    "exploiter": 3,
    "cartpole": 6,
    "league": 8,
    "self_play": 8,
}  # train iterations


@pytest.fixture(autouse=True)
def _needed_packages(request: pytest.FixtureRequest) -> None:
    graph = getattr(request.node, "callspec", None)
    if graph is not None and (package := PACKAGES.get(graph.params["graph"].stem)):
        pytest.importorskip(package)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.stem)
def test_an_example_is_sound_and_deterministic(graph: Path) -> None:
    checked = load(graph).check()
    assert checked.problems == []
    assert checked.warnings == []
    assert checked.deterministic


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.stem)
def test_an_example_is_repeatable_to_the_bit(graph: Path, tmp_path: Path) -> None:
    iters = SLOW.get(graph.stem, 20)
    one, two = (load(graph).run(train_iters=iters, out=tmp_path / name) for name in ("1", "2"))
    assert one.train_iters == iters
    assert one.digest == two.digest


def test_an_example_whose_package_is_missing_names_the_extra(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "sumo", None)
    [problem] = load(EXAMPLES / "traffic_lights" / "cologne.yaml").check().problems
    assert problem.hint == "pip install 'flowrl[traffic]'"


def test_the_readme_lists_every_example_and_nothing_else() -> None:
    text = (EXAMPLES / "README.md").read_text()
    linked = {link.split("/")[0] for link in re.findall(r"\]\(([^)]+)\)", text)}
    files = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith(("_", "."))}
    assert linked == files - {"README.md"}
    for path in re.findall(r"examples/[\w/.]+", text):
        assert (EXAMPLES.parent / path).exists(), path
