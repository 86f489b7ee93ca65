"""The YAML that the pages on envs, collectors and evaluators show is sound: each a graph, or laid over cartpole_dqn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowrl.api import load

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("envs", "collectors", "evaluators")
SHOWN = [
    pytest.param(found[1], id=f"{page}-{number}")
    for page in PAGES
    for number, found in enumerate(
        re.finditer(r"```yaml\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.S)
    )
]


def test_there_is_yaml_on_these_pages() -> None:
    assert len(SHOWN) >= 10


@pytest.mark.parametrize("shown", SHOWN)
def test_what_is_shown_is_sound(shown: str, tmp_path: Path) -> None:
    if "crazyclimber" in shown:
        pytest.importorskip("ale_py")
    text = shown if "extends:" in shown else f"extends: cartpole_dqn\n{shown}"
    graph = tmp_path / "shown.yaml"
    graph.write_text(text, encoding="utf-8")
    checked = load(graph).check()
    assert checked.problems == []
    assert checked.warnings == []
