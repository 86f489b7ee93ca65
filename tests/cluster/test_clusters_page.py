"""The launchers that docs/clusters.md shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.graph.launch import load_launch
from tests.cluster.test_launch import BASIC
from tests.sites.run_comparison import run_graph

PAGE = (Path(__file__).parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
GRAPHS = re.findall(r"```yaml\n(# graph\.yaml.*?)```", PAGE, re.S)
FILES = re.findall(r"```yaml\n(# cluster\.yaml.*?)```", PAGE, re.S)
[MY_LAUNCHER] = re.findall(r"```python\n(# my_launcher\.py.*?)```", PAGE, re.S)
[FROM_PYTHON] = re.findall(r"```python\n(import flowrl\n.*?)```", PAGE, re.S)


@pytest.fixture(autouse=True)
def _beside_my_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_launcher.py").write_text(MY_LAUNCHER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # of hosts, for toy nodes
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("text", FILES)
def test_each_file_is_a_launcher(text: str) -> None:
    Path("cluster.yaml").write_text(text, encoding="utf-8")
    assert load_launch("cluster.yaml")


@pytest.mark.parametrize("text", GRAPHS)
def test_each_graph_is_sound(text: str) -> None:
    Path("graph.yaml").write_text(text, encoding="utf-8")
    assert flowrl.load("graph.yaml").check().graph.launch


@pytest.mark.slow
def test_the_python_of_the_page_runs(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    code = FROM_PYTHON.replace("flowrl.load(", "result = flowrl.load(")
    exec(compile(code, "clusters.md", "exec"), names)
    assert names["result"].train_iters == 20


@pytest.mark.slow
def test_the_launcher_of_the_page_starts_hosts(tmp_path: Path) -> None:
    Path("cluster.yaml").write_text(FILES[-1], encoding="utf-8")
    serial = run_graph(BASIC, "serial", tmp_path / "s", train_iters=2)
    result = flowrl.load(BASIC).run(
        placement="c=mine-*,l=mine-1",
        rendezvous=flowrl.Rendezvous(launch="cluster.yaml"),
        train_iters=2,
        out=tmp_path / "run",
        quiet=True,
    )
    assert result.digest == serial["digest"]
