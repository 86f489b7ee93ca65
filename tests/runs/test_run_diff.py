"""What `flowrl diff` prints about two runs, for example when a node of a user is not deterministic."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flowrl.cli.main import main
from flowrl.core.errors import RunError
from flowrl.runs.run_diff import diff_runs
from tests.runs.test_token_file import run_with_hashes
from tests.sites.run_comparison import run_graph
from tests.toys.toy_runs import toy_graph

IMPURE_CODE = {
    "clock": "data['n'] * 0 + time.time_ns()",
    "global random": "data['n'] * 0 + int(np.random.randint(1 << 30))",
}


def graph_with_impure_node(folder: Path, how: str, replicas: int = 1) -> dict[str, Any]:
    """A graph whose node `t`, in a module beside it, reads the clock or a global generator."""
    (folder / "impure.py").write_text(
        "import os, time\nimport numpy as np\nimport flowrl\nfrom flowrl import Batch\n\n\n"
        "@flowrl.as_node\ndef impure(data: Batch) -> Batch:\n"
        f"    return data.replace(n={IMPURE_CODE[how]})\n"
    )
    nodes = {
        "c": {"type": "Source", "replicas": replicas},
        "t": {"type": "impure:impure", "replicas": replicas},
        "l": "Learner",
    }
    return toy_graph(nodes, ["c -> t -> l", "l.weights -> c.weights"])


@pytest.mark.parametrize("how", IMPURE_CODE)
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("placement", ["threads", "t=thread"])
def test_an_impure_node_is_named_in_every_placement(
    how: str, replicas: int, placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    graph = graph_with_impure_node(tmp_path, how, replicas)
    a = run_with_hashes(graph, tmp_path / "a", rounds=4)
    b = run_with_hashes(graph, tmp_path / "b", placement, rounds=4)
    digest, *lines = diff_runs(a, b, equal_graphs=True).splitlines()
    assert " -> " in digest
    assert lines[0] == (
        "tokens: the first that differs is token 0 of t.out -> l.data, from firing 0 of t (round 0)"
    )
    # equal: what each collector read and produced
    assert lines[1] == f"  {2 * replicas} before it are equal"
    assert lines[2].startswith("  the inputs of t up to this point are equal too")
    assert "docs/nodes.md" in lines[3]


@pytest.mark.slow
def test_an_impure_node_in_a_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    graph = graph_with_impure_node(tmp_path, "global random", replicas=3)
    a = run_with_hashes(graph, tmp_path / "a", "processes", rounds=4)
    b = run_with_hashes(graph, tmp_path / "b", "c=process,t=process:x,l=thread", rounds=4)
    assert main(["diff", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("graphs: no difference\ndigest: ")
    assert "the first that differs is token 0 of t.out -> l.data, from firing 0 of t" in out


def test_digests_that_differ_without_hashes_suggest_hash_tokens(tmp_path: Path) -> None:
    graph = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l"])
    a, b = tmp_path / "a", tmp_path / "b"
    run_graph(graph, "serial", a, train_iters=4)
    run_graph(graph, "serial", b, train_iters=9)
    assert diff_runs(a, b, equal_graphs=True).splitlines()[1:] == [
        "  they were cut at different positions: env_steps 40 -> 90, train_iters 4 -> 9, episodes 4 -> 9",
        f"tokens: not recorded in {a} and {b}; run both again with --hash-tokens",
    ]


def test_the_environments_of_both_runs_are_compared(tmp_path: Path) -> None:
    graph = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l"])
    a, b = tmp_path / "a", tmp_path / "b"
    run_graph(graph, "serial", a, train_iters=4)
    shutil.copytree(a, b)
    path = b / "environment.json"
    known = json.loads(path.read_text())
    known["packages"]["torch"] = "2.2.0"
    known["choices"]["MKL_CBWR"] = "AVX2"
    path.write_text(json.dumps(known))
    digest, *lines = diff_runs(a, b, equal_graphs=True).splitlines()
    assert digest.endswith(", the same")
    assert lines[0].startswith("ran on: packages.torch ")
    assert lines[1:] == ["ran on: choices.MKL_CBWR none -> AVX2"]
    path.write_text("{")
    with pytest.raises(RunError, match=r"environment\.json: cannot be read"):
        diff_runs(a, b, equal_graphs=True)


def test_no_code_is_suspected_where_the_graphs_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l"])
    a = run_with_hashes(graph, tmp_path / "a", rounds=4)
    graph["nodes"]["c"]["steps"] = 20
    b = run_with_hashes(graph, tmp_path / "b", rounds=4)
    assert main(["diff", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "~ node c: steps 10 -> 20" in out
    assert "token 0 of c.data -> l.data" in out
    assert "the inputs of" not in out
