"""What `flowrl diff` says of two runs: as a user meets it whose node is not what it should be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flowrl.cli.main import main
from flowrl.core.errors import RunError
from flowrl.runs.run_diff import diff_runs
from tests.runs.test_token_file import hashed
from tests.sites.comparing import ran
from tests.toys.running import tree

MINE = {
    "clock": "data['n'] * 0 + time.time_ns()",
    "global random": "data['n'] * 0 + int(np.random.randint(1 << 30))",
}


def tainted(folder: Path, how: str, replicas: int = 1) -> dict[str, Any]:
    """A graph with a node of a user's, beside it, that computes with what it should not."""
    (folder / "tainted.py").write_text(
        "import os, time\nimport numpy as np\nimport flowrl\nfrom flowrl import Batch\n\n\n"
        "@flowrl.as_node\ndef taint(data: Batch) -> Batch:\n"
        f"    return data.replace(n={MINE[how]})\n"
    )
    nodes = {
        "c": {"type": "Source", "replicas": replicas},
        "t": {"type": "tainted:taint", "replicas": replicas},
        "l": "Learner",
    }
    return tree(nodes, ["c -> t -> l", "l.weights -> c.weights"])


@pytest.mark.parametrize("how", MINE)
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("placement", ["threads", "t=thread"])
def test_a_tainted_node_is_named_in_every_placement(
    how: str, replicas: int, placement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    graph = tainted(tmp_path, how, replicas)
    a = hashed(graph, tmp_path / "a", rounds=4)
    b = hashed(graph, tmp_path / "b", placement, rounds=4)
    digest, *lines = diff_runs(a, b, alike=True).splitlines()
    assert " -> " in digest
    # what each collector saw and gave
    assert lines[0] == (
        "tokens: the first that differs is token 0 of t.out -> l.data, from firing 0 of t (round 0)"
    )
    assert lines[1] == f"  {2 * replicas} before it are equal"
    assert lines[2].startswith("  what t had taken until then is equal too")
    assert "docs/nodes.md" in lines[3]


def test_a_tainted_node_in_a_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    graph = tainted(tmp_path, "global random", replicas=3)
    a = hashed(graph, tmp_path / "a", "processes", rounds=4)
    b = hashed(graph, tmp_path / "b", "c=process,t=process:x,l=thread", rounds=4)
    assert main(["diff", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("graphs: no difference\ndigest: ")
    assert "the first that differs is token 0 of t.out -> l.data, from firing 0 of t" in out


def test_digests_that_differ_without_hashes_say_what_to_do(tmp_path: Path) -> None:
    graph = tree({"c": "Source", "l": "Learner"}, ["c -> l"])
    a, b = tmp_path / "a", tmp_path / "b"
    ran(graph, "serial", a, train_iters=4)
    ran(graph, "serial", b, train_iters=9)
    assert diff_runs(a, b, alike=True).splitlines()[1:] == [
        "  they were not cut at the same place: env_steps 40 -> 90, train_iters 4 -> 9, episodes 4 -> 9",
        f"tokens: not recorded in {a} and {b}; run both again with --hash-tokens",
    ]


def test_what_they_ran_on_is_compared(tmp_path: Path) -> None:
    graph = tree({"c": "Source", "l": "Learner"}, ["c -> l"])
    a, b = tmp_path / "a", tmp_path / "b"
    ran(graph, "serial", a, train_iters=4)
    shutil.copytree(a, b)
    path = b / "environment.json"
    known = json.loads(path.read_text())
    known["packages"]["torch"] = "2.2.0"
    known["choices"]["MKL_CBWR"] = "AVX2"
    path.write_text(json.dumps(known))
    digest, *lines = diff_runs(a, b, alike=True).splitlines()
    assert digest.endswith(", the same")
    assert lines[0].startswith("ran on: packages.torch ")
    assert lines[1:] == ["ran on: choices.MKL_CBWR none -> AVX2"]
    path.write_text("{")
    with pytest.raises(RunError, match=r"environment\.json: cannot be read"):
        diff_runs(a, b, alike=True)


def test_another_parameter_is_cause_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is said of code where the graphs differ."""
    graph = tree({"c": "Source", "l": "Learner"}, ["c -> l"])
    a = hashed(graph, tmp_path / "a", rounds=4)
    graph["nodes"]["c"]["steps"] = 20
    b = hashed(graph, tmp_path / "b", rounds=4)
    assert main(["diff", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "~ node c: steps 10 -> 20" in out
    assert "token 0 of c.data -> l.data" in out
    assert "its own code" not in out
