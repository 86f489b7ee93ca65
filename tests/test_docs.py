"""The YAML on the pages is sound (a graph, or a change of cartpole_dqn), Python code runs, and commands are valid."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from flowrl.api import FlowGraph, load
from flowrl.cli.main import make_parser
from flowrl.core.batch import Column
from flowrl.core.facts import Facts, Surroundings
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluator import Evaluator
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.random import Random

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    page.relative_to(ROOT).with_suffix("").as_posix(): page.read_text(encoding="utf-8")
    for page in sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/**/*.md")])
}
# Blocks that the test of another file runs: page, a line of the block, and that file.
ELSEWHERE = [
    ("README", "# mine.yaml", "tests/test_readme.py"),  # it is unsound
    ("README", "result = flowrl", "tests/test_readme.py"),
    ("docs/nodes", "mine:Balance", "tests/test_docs.py"),
    ("docs/nodes", "class Balance", "tests/test_docs.py"),
    ("docs/nodes", "# my_layers.py", "tests/test_docs.py"),
    ("docs/nodes", "my_layers:Sines", "tests/test_docs.py"),
    ("docs/nodes", "# my_module.py", "tests/test_docs.py"),
    ("docs/nodes", "my_module:Net", "tests/test_docs.py"),
    ("docs/nodes", "# my_exploring.py", "tests/test_docs.py"),
    ("docs/nodes", "my_exploring:Repeat", "tests/test_docs.py"),
    ("docs/algorithms", "# baseline.py", "tests/examples/test_my_algorithm.py"),
    ("docs/algorithms", "baseline:Baseline", "tests/examples/test_my_algorithm.py"),
    ("docs/edits", "type: her", "tests/nodes/rewards/test_edits.py"),
    ("docs/rewards", "expert_labels", "tests/nodes/labels/test_expert_labels.py"),
    ("docs/rewards", "# my_rewards.py", "tests/examples/test_my_reward.py"),
    ("docs/rewards", "my_rewards:", "tests/examples/test_my_reward.py"),
    ("docs/rewards", "# surprise.py", "tests/examples/test_my_reward.py"),
    ("docs/rewards", "surprise:Surprise", "tests/examples/test_my_reward.py"),
    ("docs/leagues", "# dqn_exploiter.yaml", "tests/examples/test_my_league.py"),
    ("docs/self-play", "# undercut.yaml", "tests/examples/test_my_league.py"),
    ("docs/self-play", "# self_play.yaml", "tests/examples/test_my_league.py"),
    ("docs/self-play", "# league.yaml", "tests/examples/test_my_league.py"),
    ("docs/graph", "  - agent, expert -> buffer", "tests/graph/test_graph_page.py"),
    ("docs/clusters", "# cluster.yaml", "tests/cluster/test_clusters_page.py"),
    ("docs/clusters", "# rights.yaml", "tests/cluster/test_kubernetes.py"),
    ("docs/clusters", "# graph.yaml", "tests/cluster/test_clusters_page.py"),
    ("docs/clusters", "# job.sh", "tests/cluster/test_slurm.py"),
    ("docs/clusters", "# my_launcher.py", "tests/cluster/test_clusters_page.py"),
    ("docs/clusters", "flowrl.Rendezvous(launch=", "tests/cluster/test_clusters_page.py"),
]
MODULE = re.compile(r"# (\w+\.py), beside the graph\n")
[MY_NODES] = re.findall(r"```python\n(# my_nodes\.py.*?)```", PAGES["README"], re.S)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.S)


def is_elsewhere(page: str, block: str) -> bool:
    return any(page == other and line in block for other, line, _ in ELSEWHERE)


GRAPHS = [
    pytest.param(page, block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page, "yaml"))
    if not is_elsewhere(page, block) and not re.search(r"^ports:", block, re.M)
]


@pytest.fixture
def shown_graph(page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph of a page as a file, beside the files that pages name; by itself, or laid over `cartpole_dqn`."""
    monkeypatch.chdir(tmp_path)
    if "crazyclimber" in block:
        pytest.importorskip("ale_py")
    datasets = (ROOT / "graphs").glob("*.npz")
    for file in (*datasets, *(ROOT / "examples/my_goals").iterdir()):
        if file.is_file():
            shutil.copy(file, tmp_path)
    (tmp_path / "my_nodes.py").write_text(MY_NODES, encoding="utf-8")
    for other in blocks(page, "yaml"):  # such as a part-graph
        if name := re.match(r"# (\w+\.yaml)\n", other):
            (tmp_path / name[1]).write_text(other, encoding="utf-8")
    for module in blocks(page, "python"):
        if name := MODULE.match(module):
            (tmp_path / name[1]).write_text(module, encoding="utf-8")
    graph = tmp_path / "shown.yaml"
    is_whole = re.search(r"^(about|extends):", block, re.M)
    text = block if is_whole else f"extends: cartpole_dqn\n{block}"
    graph.write_text(text, encoding="utf-8")
    return graph


def test_there_is_yaml_on_many_pages() -> None:
    assert len(GRAPHS) >= 40
    assert all((ROOT / file).is_file() for *_, file in ELSEWHERE)


@pytest.mark.parametrize(("page", "block"), GRAPHS)
def test_a_graph_on_a_page_is_sound(shown_graph: Path) -> None:
    checked = load(shown_graph).check()
    assert checked.problems == []
    assert checked.warnings == []


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), GRAPHS)
def test_a_graph_on_a_page_runs(shown_graph: Path) -> None:
    result = load(shown_graph).run(train_iters=1, quiet=True)
    assert (result.status, result.train_iters) == ("finished", 1)


def sections(page: str) -> Iterator[tuple[str, str, str]]:
    """Each block of a page: the heading above it, its language and its text."""
    heading = ""
    for found in re.finditer(r"^```(\w*)\n(.*?)^```|^#+ ([^\n]*)$", PAGES[page], re.M | re.S):
        if found[3] is not None:
            heading = found[3]
        else:
            yield heading, found[1], found[2]


def by_hand(page: str, heading: str) -> Any:
    """The Python that a section of a page shows."""
    shown = [
        text
        for above, language, text in sections(f"docs/{page}")
        if (above, language) == (heading, "python")
    ]
    assert shown
    return compile("\n".join(shown), f"{page}.md, {heading}", "exec")


def test_every_python_block_is_run_by_a_test() -> None:
    calls = [
        node
        for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "by_hand"
    ]
    run = {tuple(ast.literal_eval(argument) for argument in call.args) for call in calls}
    left = [
        f"{page}.md, {heading}"
        for page in PAGES
        for heading, language, text in sections(page)
        if language == "python"
        and (page.removeprefix("docs/"), heading) not in run
        and not is_elsewhere(page, text)
        and text != MY_NODES  # beside each graph
        and not MODULE.match(text)  # beside the graphs of its page
    ]
    assert left == []
    assert len(run) >= 12


@pytest.mark.slow
def test_a_policy_that_only_acts_is_as_short_as_it_is_shown(tmp_path: Path) -> None:
    code, graph = [text for above, _, text in sections("docs/nodes") if above == "A policy"]
    imports = "import numpy as np\nfrom flowrl.nodes.policy import Policy\n"
    (tmp_path / "mine.py").write_text(imports + code, encoding="utf-8")
    evaluated = "nodes: {evaluator: {policy: 'mine:Balance', episodes: 3}}\n"
    (tmp_path / "shown.yaml").write_text(f"extends: cartpole_dqn\n{graph}{evaluated}")
    result = load(tmp_path / "shown.yaml").run(train_iters=96, out=tmp_path / "run")
    assert result.eval_return == 500  # no weights had to be learned for that


def test_a_layer_is_as_short_as_it_is_shown(tmp_path: Path) -> None:
    [code] = [text for *_, text in sections("docs/nodes") if text.startswith("# my_layers.py")]
    [graph] = [text for *_, text in sections("docs/nodes") if "my_layers:Sines" in text]
    (tmp_path / "my_layers.py").write_text(code, encoding="utf-8")
    (tmp_path / "shown.yaml").write_text(f"extends: cartpole_dqn\n{graph}")
    result = load(tmp_path / "shown.yaml").run(train_iters=2, out=tmp_path / "run", quiet=True)
    assert result.train_iters == 2
    weights = load_file(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert any(array.shape == (64, 4) for array in weights.values())


@pytest.mark.parametrize(
    ("module", "extends"),
    [
        ("my_module", "cartpole_ppo"),
        ("my_module", "cartpole_a2c"),
        ("my_exploring", "cartpole_dqn"),
    ],
)
def test_modules_and_exploring_steps_are_as_short_as_they_are_shown(
    tmp_path: Path, module: str, extends: str
) -> None:
    [code] = [text for *_, text in sections("docs/nodes") if text.startswith(f"# {module}.py")]
    [graph] = [text for *_, text in sections("docs/nodes") if f"{module}:" in text]
    (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
    (tmp_path / "shown.yaml").write_text(f"extends: {extends}\n{graph}")
    result = load(tmp_path / "shown.yaml").run(train_iters=1, out=tmp_path / "run", quiet=True)
    assert result.train_iters == 1


def test_the_nodes_on_the_page_can_be_fired_and_described() -> None:
    names: dict[str, Any] = {"Facts": Facts, "Column": Column}
    exec(by_hand("nodes", "A function"), names)
    exec(by_hand("nodes", "A class"), names)
    rows = names["Batch"]({"reward": np.array([3.0, -2.0, 0.5], np.float32)})
    assert names["clip_reward"](rows, low=-0.5)["reward"].tolist() == [1.0, -0.5, 0.5]
    bonus = names["Bonus"](weight=1.0)
    assert bonus.fire(rows)["reward"].tolist() == [4.0, -1.0, 1.5]
    exec(by_hand("nodes", "Ports that depend on parameters"), names)
    shifted = names["Shifts"](shifts={"low": -1, "high": 1}).fire(rows)
    assert {name: batch["reward"].tolist() for name, batch in shifted.items()} == {
        "low": [2.0, -3.0, -0.5],
        "high": [4.0, -1.0, 1.5],
    }
    exec(by_hand("nodes", "Facts"), names)
    described = type("Described", (names["Bonus"],), {"describe": names["describe"]})
    facts = described.describe(bonus.config, Surroundings({"data": rows.schema}, {}, frozenset()))
    assert facts.outs == {"out": rows.schema}


@pytest.mark.slow
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
    exec(by_hand("learners", "Hooks"), names)
    exec(by_hand("learners", "By hand"), names)
    assert names["other"].train_iter == names["learner"].train_iter == 11
    names["env"] = Gymnasium(id="CartPole-v1")
    exec(by_hand("evaluators", "By hand"), names)
    assert len(names["evaluation"].returns) == 10
    exec(by_hand("runs", "By hand"), names)
    assert (tmp_path / "runs" / "mine" / "checkpoints" / "last.safetensors").is_file()
    names["evaluator"].close()
    names["envs"].close()


@pytest.mark.slow
def test_a_run_from_python_goes_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(by_hand("runs", "In Python"), names)
    assert "finished: 100 train iterations were asked for" in capsys.readouterr().out
    assert len(names["result"].metrics()["learner"]["loss"]) == 1
    assert names["done"]


@pytest.mark.slow
def test_a_watcher_is_notified_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(by_hand("runs", "Watchers"), {})
    begin, *events, end = capsys.readouterr().out.splitlines()
    assert begin.endswith("0.002")
    assert events[-1].startswith("evaluator 4")
    assert end.startswith("finished ")


@pytest.mark.slow
def test_a_node_is_replayed_from_python_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(by_hand("record_and_replay", "Replaying"), {})
    assert capsys.readouterr().out == "{'learner.weights -> collector.weights': 8}\n"


def test_envs_are_stepped_by_hand_as_it_is_shown() -> None:
    names: dict[str, Any] = {"policy": lambda obs: int(obs[2] > 0)}
    exec(by_hand("envs", "By hand"), names)
    assert len(names["timesteps"]) > 0
    assert names["envs"].done


def test_what_an_env_carries_over_is_data_as_it_is_shown() -> None:
    names: dict[str, Any] = {}
    exec(by_hand("envs", "Saved envs"), names)
    old, new = SimpleNamespace(mean=0.25), SimpleNamespace()
    carried = names["get_carry_over"](old)
    names["set_carry_over"](new, json.loads(json.dumps(carried)))
    assert new == old


def test_an_act_mode_takes_and_gives_memory_as_it_is_shown() -> None:
    policy = Ppo(
        obs=Column("float32", (4,)), action=Column("int64", n=2), model=Gru(size=8), unroll_steps=4
    )
    mode = policy.collect_mode(0)
    mode.load(Learner(policy=policy, seed=0).state())
    names: dict[str, Any] = {
        "mode": mode,
        "obs": np.zeros((3, 4), np.float32),
        "memory": np.zeros((3, 8), np.float32),
    }
    exec(by_hand("collectors", "Recurrent policies"), names)
    assert names["output"]["memory"].shape == (3, 8)
    assert names["output"]["action"].shape == (3,)


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
    exec(by_hand("hosts", "Hosts"), {})
    [arguments] = calls
    assert set(arguments) <= set(parameters)
    assert arguments["rendezvous"].hosts == 3
