"""A graph that is sent to another machine is read there as the same graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from flowrl.checks.check import CheckedGraph, check
from flowrl.checks.fingerprint import differing_parts, graph_fingerprint
from flowrl.core.errors import UsageError
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.needed_files import file_params, files_beside, modules_beside
from flowrl.runtime.sites import graph_transfer as sending
from flowrl.runtime.sites.graph_transfer import SentGraph, graph_to_send, load_sent_graph
from tests.toys.toy_runs import toy_graph

GRAPH = """
extends: cartpole_dqn
env: {id: 'world:World'}
nodes:
  demos: {type: demos, path: data/demos.npz}
  mine: {type: 'mine.nodes:passes'}
edges:
  - demos -> buffer.demos
  - collector -> mine -> buffer
"""
FILES = {
    "world.py": "from gymnasium.envs.classic_control import CartPoleEnv as World\nimport json\n",
    "mine/__init__.py": "",
    "mine/nodes.py": "import flowrl\nfrom flowrl import Batch\nfrom . import inner\nimport top.level\n"
    "\n@flowrl.as_node\ndef passes(data: Batch) -> Batch:\n    return data\n",
    "mine/inner.py": "def f():\n    from lazy import x\n",
    "mine/deep/er.py": "",
    "top/__init__.py": "",
    "top/level.py": "",
    "lazy.py": "import not_installed_anywhere\n",
    "broken.py": "this is no Python",
    "unused.py": "import mine\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a graph, modules and data."""
    import sys

    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "data").mkdir()
    demos = Path("graphs/cartpole_demos.npz")
    (folder / "data" / "demos.npz").write_bytes(demos.read_bytes())
    (folder / "g.yaml").write_text(GRAPH)
    yield folder
    for name in [n for n in sys.modules if n.partition(".")[0] in ("world", "mine", "top", "lazy")]:
        del sys.modules[name]


@pytest.fixture
def checked(project: Path) -> CheckedGraph:
    return check(load_graph(project / "g.yaml")).require_sound()


def arrived(sent: SentGraph, folder: Path) -> dict[str, Any]:
    """The configuration that a host reads after the network and a pipe. The files are in the folder."""
    for name, piece in sent.pieces():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("ab") as file:
            file.write(piece)
    config: dict[str, Any] = json.loads(json.dumps(msgpack.unpackb(msgpack.packb(sent.config))))
    return config


@pytest.mark.slow
def test_modules_are_found_by_the_types_that_name_them(
    checked: CheckedGraph, project: Path
) -> None:
    assert modules_beside(checked.graph) == {"world": project, "mine": project}


def test_files_are_found_by_imports_also_those_within_functions(
    checked: CheckedGraph, project: Path
) -> None:
    found = files_beside(checked.graph)
    assert {folder: [str(file) for file in files] for folder, files in found.items()} == {
        project: [
            *["lazy.py", "mine/__init__.py", "mine/deep/er.py", "mine/inner.py", "mine/nodes.py"],
            *["top/__init__.py", "top/level.py", "world.py"],
        ]
    }


def test_an_invalid_python_file_is_sent_like_any_other(project: Path) -> None:
    (project / "lazy.py").write_text("import broken\n")
    names = files_beside(check(load_graph(project / "g.yaml")).graph)[project]
    assert Path("broken.py") in names


def test_files_to_read_are_found_by_their_parameters(checked: CheckedGraph) -> None:
    assert file_params(checked.graph) == [("nodes", "demos", "path")]


def test_what_was_sent_reads_as_the_same_graph(
    checked: CheckedGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    config = arrived(graph_to_send(checked), there)
    loaded = load_sent_graph(config, there)
    assert loaded.graph.name == "g"
    data = there / "files" / "0" / "demos.npz"
    assert loaded.graph.nodes["demos"].config.path == str(data)  # type: ignore[attr-defined]
    with np.load(data) as here, np.load("graphs/cartpole_demos.npz") as original:
        assert here.files == original.files
    assert (there / "modules" / "0" / "mine" / "inner.py").is_file()
    assert not list(there.rglob("unused.py"))


def test_a_graph_without_files_sends_none() -> None:
    sent = graph_to_send(check(load_data(toy_graph({"c": "Source", "l": "Learner"}, ["c -> l"]))))
    assert list(sent.pieces()) == []
    there = check(load_sent_graph(json.loads(json.dumps(dict(sent.config))), Path("nowhere")))
    assert differing_parts(graph_fingerprint(there), sent.config["fingerprint"]) == []


def test_large_files_go_in_pieces_and_empty_ones_too(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(range(256)) * 9000)
    (tmp_path / "empty").touch()
    sent = SentGraph({}, (("large", tmp_path / "large"), ("empty", tmp_path / "empty")))
    pieces = list(sent.pieces())
    assert [(name, len(piece)) for name, piece in pieces] == [
        *[("large", 1 << 20), ("large", 1 << 20), ("large", 206848), ("empty", 0)],
    ]
    assert b"".join(p for name, p in pieces if name == "large") == bytes(range(256)) * 9000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_MODULE_BYTES", "hosts: the Python files beside the graph are 8, of "),
        ("MAX_MODULES", "hosts: the Python files beside the graph are 8, of "),
        ("MAX_FILE_BYTES", "hosts: the files that the graph names are 1, of "),
    ],
)
def test_files_that_are_too_large_are_refused_before_anything_is_sent(
    checked: CheckedGraph, monkeypatch: pytest.MonkeyPatch, limit: str, message: str
) -> None:
    monkeypatch.setattr(sending, limit, 1)
    with pytest.raises(UsageError) as error:
        graph_to_send(checked)
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("bytes are sent")


# what a site has read, compared


def read_of(rows: int = 8, edges: Any = None, **more: Any) -> dict[str, str]:
    nodes = {"c": {"type": "Source", "give": rows}, "l": "Learner"}
    return graph_fingerprint(check(load_data(toy_graph(nodes, edges or ["c -> l"], **more))))


def test_the_same_graph_reads_the_same() -> None:
    assert differing_parts(read_of(), read_of()) == []
    assert differing_parts(read_of(), read_of(placements={"p": {"c": "thread"}})) == []


def test_a_node_that_differs_is_named_and_the_schedule_that_follows() -> None:
    assert differing_parts(read_of(4), read_of(5)) == ["node 'c'", "schedule"]


def test_edges_and_settings_that_differ_are_named() -> None:
    other = ["c -> l", "l.weights -> c.weights"]
    assert differing_parts(read_of(), read_of(edges=other)) == ["edges"]
    assert differing_parts(read_of(), read_of(seed=3)) == ["settings"]


def test_a_node_that_is_missing_is_named() -> None:
    there = read_of()
    here = {name: text for name, text in there.items() if name != "node 'l'"}
    assert differing_parts(here, there) == ["node 'l'"]


def test_a_host_that_finds_no_type_of_the_graph_names_all_nodes() -> None:
    here = check(load_data(toy_graph({"c": "Source", "l": "Learner"}, ["c -> l"])))
    nodes = {"c": {"type": "not_there:A"}, "l": {"type": "not_there:B"}}
    there = check(load_data({"nodes": nodes, "edges": []}))
    different = differing_parts(graph_fingerprint(there), graph_fingerprint(here))
    assert different[:2] == ["node 'c'", "node 'l'"]
