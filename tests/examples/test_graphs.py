"""The example graphs, and the README that lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowrl.api import load

EXAMPLES = Path(__file__).parents[2] / "examples"
GRAPHS = sorted(EXAMPLES.rglob("*.yaml"))


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.stem)
def test_an_example_is_sound_and_deterministic(graph: Path) -> None:
    checked = load(graph).check()
    assert checked.problems == []
    assert checked.warnings == []
    assert checked.deterministic


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.stem)
def test_an_example_is_repeatable_to_the_bit(graph: Path, tmp_path: Path) -> None:
    one, two = (load(graph).run(train_iters=20, out=tmp_path / name) for name in ("1", "2"))
    assert one.train_iters == 20
    assert one.digest == two.digest


def test_the_readme_lists_every_example_and_nothing_else() -> None:
    text = (EXAMPLES / "README.md").read_text()
    linked = {link.split("/")[0] for link in re.findall(r"\]\(([^)]+)\)", text)}
    files = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith(("_", "."))}
    assert linked == files - {"README.md"}
    for path in re.findall(r"examples/[\w/.]+", text):
        assert (EXAMPLES.parent / path).exists(), path
