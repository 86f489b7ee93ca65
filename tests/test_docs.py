"""The YAML on the pages is sound (a graph, or a change of cartpole_dqn), Python code runs, and commands are valid."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.api import FlowGraph, load
from flowrl.cli.main import make_parser
from flowrl.core.batch import Column
from flowrl.core.node import Facts, Surroundings
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.policies.random import Random

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("envs", "collectors", "buffers", "evaluators")
ROOT = DOCS.parent
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
    for file in (
        ROOT / "graphs" / "cartpole_demos.npz",
        *(ROOT / "examples" / "my_goals").iterdir(),
    ):
        if file.is_file():
            shutil.copy(file, tmp_path)  # the pages name them as files beside the graph
    text = shown if "extends:" in shown else f"extends: cartpole_dqn\n{shown}"
    graph = tmp_path / "shown.yaml"
    graph.write_text(text, encoding="utf-8")
    checked = load(graph).check()
    assert checked.problems == []
    assert checked.warnings == []


def by_hand(page: str, heading: str) -> Any:
    """The Python that a section of a page shows."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    section = re.split(r"\n##+ ", text.partition(f"## {heading}\n")[2])[0]
    [code] = re.findall(r"```python\n(.*?)```", section, re.S)
    return compile(code, f"{page}.md, {heading}", "exec")


def test_a_policy_that_only_acts_is_as_short_as_it_is_shown(tmp_path: Path) -> None:
    section = (DOCS / "nodes.md").read_text(encoding="utf-8").partition("## A policy\n")[2]
    code, graph = re.findall(r"```(?:python|yaml)\n(.*?)```", section, re.S)[:2]
    imports = "import numpy as np\nfrom flowrl.nodes.policy import Policy\n"
    (tmp_path / "mine.py").write_text(imports + code, encoding="utf-8")
    evaluated = "nodes: {evaluator: {policy: 'mine:Balance', episodes: 3}}\n"
    (tmp_path / "shown.yaml").write_text(f"extends: cartpole_dqn\n{graph}{evaluated}")
    result = load(tmp_path / "shown.yaml").run(train_iters=96, out=tmp_path / "run")
    assert result.eval_return == 500  # no weights had to be learned for that


def test_the_nodes_on_the_page_can_be_fired_and_described() -> None:
    names: dict[str, Any] = {"Facts": Facts, "Column": Column}
    exec(by_hand("nodes", "A function"), names)
    exec(by_hand("nodes", "A class"), names)
    rows = names["Batch"]({"reward": np.array([3.0, -2.0, 0.5], np.float32)})
    assert names["clip_reward"](rows, low=-0.5)["reward"].tolist() == [1.0, -0.5, 0.5]
    bonus = names["Bonus"](weight=1.0)
    assert bonus.fire(rows)["reward"].tolist() == [4.0, -1.0, 1.5]
    exec(by_hand("nodes", "Facts"), names)
    described = type("Described", (names["Bonus"],), {"describe": names["describe"]})
    facts = described.describe(bonus.config, Surroundings({"data": rows.schema}, {}, frozenset()))
    assert facts.outs == {"out": rows.schema}


def test_what_is_done_by_hand_runs_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page after page, with the names of those before: a reader has them, too."""
    names: dict[str, Any] = {"Evaluator": Evaluator}
    exec(by_hand("nodes", "By hand"), names)
    policy = names["policy"]
    names["random_policy"] = Random(obs=policy.obs, action=policy.action)
    exec(by_hand("collectors", "Other policies, other envs"), names)
    assert len(names["rows"]) == 1000
    names["td_errors"] = np.ones(256)
    exec(by_hand("buffers", "By hand"), names)
    assert names["buffer"].count == 0  # it was cleared in the end
    names["buffer"].push(names["rows"])
    monkeypatch.chdir(tmp_path)
    exec(by_hand("buffers", "Datasets"), names)
    assert names["buffer"].count == 2000
    names["env"] = Gymnasium(id="CartPole-v1")
    exec(by_hand("evaluators", "By hand"), names)
    assert len(names["evaluation"].returns) == 10
    names["evaluator"].close()
    names["envs"].close()


def test_a_run_from_python_goes_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    section = (DOCS / "runs.md").read_text(encoding="utf-8").partition("## In Python\n")[2]
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.S):
        exec(compile(code, "runs.md", "exec"), names)
    assert "finished: 100 train iterations were asked for" in capsys.readouterr().out
    assert len(names["result"].metrics()["learner"]["loss"]) == 1
    assert names["done"]


def test_a_watcher_is_notified_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(by_hand("runs", "Watchers"), {})
    begin, *events, end = capsys.readouterr().out.splitlines()
    assert begin.endswith("0.002")
    assert events[-1].startswith("evaluator 4")
    assert end.startswith("finished ")


def test_envs_are_stepped_by_hand_as_it_is_shown() -> None:
    names: dict[str, Any] = {"policy": lambda obs: int(obs[2] > 0)}
    exec(by_hand("envs", "By hand"), names)
    assert len(names["timesteps"]) > 0
    assert names["envs"].done


def commands(path: Path) -> Iterator[str]:
    """The flowrl commands in the console and shell blocks of a page."""
    for block in re.findall(r"```(?:console|sh)\n(.*?)```", path.read_text("utf-8"), re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition("$ ")[2] or line, comments=True)
            if words and words[0] == "flowrl":
                yield shlex.join(word for word in words[1:] if word != "&")


@pytest.mark.parametrize(
    "command",
    sorted({c for page in (*DOCS.glob("*.md"), ROOT / "README.md") for c in commands(page)}),
)
def test_the_commands_on_the_pages_have_valid_arguments(command: str) -> None:
    words = shlex.split(command)
    assert hasattr(make_parser(words[0]).parse_args(words), "function")


def test_a_run_on_hosts_is_started_from_python_as_the_page_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters, calls = inspect.signature(FlowGraph.run).parameters, list[dict[str, Any]]()
    monkeypatch.setattr(FlowGraph, "run", lambda graph, **arguments: calls.append(arguments))
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / "hosts.md").read_text("utf-8"), re.S)
    exec(compile(code, "hosts.md", "exec"), {})
    [arguments] = calls
    assert set(arguments) <= set(parameters)
    assert arguments["rendezvous"].hosts == 3
