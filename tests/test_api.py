"""The Python interface: a graph by file, name or data; checked, expanded, drawn and run."""

from __future__ import annotations

import json
import pydoc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.errors import GraphError, NodeError, UsageError
from flowrl.core.records import Record
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource
from tests.toys.toy_runs import toy_graph

NODES = {"c": "Source", "l": "Learner", "e": "Evaluator"}
EDGES = ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}]
GRAPH = toy_graph(NODES, EDGES)
UNSOUND = toy_graph({**NODES, "x": {"type": "Evaluator", "gaol": 1}}, EDGES)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The graph as a file of the working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "g.yaml"
    path.write_text("".join(f"{key}: {flow_text(value)}\n" for key, value in GRAPH.items()))
    return path


@pytest.mark.slow
def test_a_graph_is_the_same_as_data_and_as_a_file_by_path_or_name(file: Path) -> None:
    texts = [flowrl.load(source).expand() for source in (GRAPH, file, str(file), "g.yaml")]
    bodies = {text.partition("\n")[2] for text in texts}  # the first line is the graph's name
    assert len(bodies) == 1
    digests = {
        flowrl.load(source).run(train_iters=3, out=file.parent / f"r{k}").digest
        for k, source in enumerate((GRAPH, file, "g.yaml"))
    }
    assert len(digests) == 1


def test_the_expanded_graph_runs_to_the_same_bits(file: Path) -> None:
    (file.parent / "whole.yaml").write_text(flowrl.load(file, {"seed": 4}).expand())
    first, again = (
        flowrl.load(source, given).run(train_iters=4)
        for source, given in ((file, {"seed": 4}), ("whole.yaml", {}))
    )
    assert (first.seed, first.digest) == (again.seed, again.digest) == (4, first.digest)


def test_check_reports_problems_without_raising(file: Path) -> None:
    sound, unsound = flowrl.load(file).check(), flowrl.load(UNSOUND).check()
    assert (sound.ok, sound.deterministic, list(sound.problems)) == (True, True, [])
    assert not unsound.ok
    assert any("gaol" in str(problem) for problem in unsound.problems)


@pytest.mark.parametrize("verb", ["expand", "draw", "run"])
def test_everything_but_check_raises_for_an_unsound_graph(verb: str) -> None:
    with pytest.raises(GraphError, match="gaol") as reported:
        getattr(flowrl.load(UNSOUND), verb)()
    assert len(reported.value.problems) == len(flowrl.load(UNSOUND).check().problems)


def test_set_takes_values_of_python(file: Path) -> None:
    given: dict[str, Any] = {
        "c.steps": 3,
        "c.mode": "odd: #1",
        "e.goal": None,
        "limits": {"rounds": 2},
    }
    graph = flowrl.load(file, given).check().require_sound().graph
    assert graph.nodes["c"].config.steps == 3
    assert graph.nodes["c"].config.mode == "odd: #1"
    assert graph.nodes["e"].config.goal is None
    assert graph.limits.rounds == 2


@pytest.mark.parametrize("value", ["7", "null", "true", "- a", "", " x ", "a\nb", "${p}"[1:], "é"])
def test_a_text_that_looks_like_something_else_stays_a_text(value: str) -> None:
    graph = flowrl.load(GRAPH, {"c.mode": value}).check().require_sound().graph
    assert graph.nodes["c"].config.mode == value


def test_values_of_a_run_override_those_of_loading(tmp_path: Path) -> None:
    graph = flowrl.load(GRAPH, {"c.steps": 3, "l.stops_at": 9})
    result = graph.run(set={"c.steps": 5, "limits.rounds": 2}, out=tmp_path / "a")
    assert result.env_steps == 10
    assert graph.run(train_iters=2, out=tmp_path / "b").env_steps == 6  # nothing stays of it
    resolved = (tmp_path / "a" / "graph.yaml").read_text()
    assert "steps: 5" in resolved
    assert "stops_at: 9" in resolved


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"steps": 25}, (30, 3)),
        ({"train_iters": 4}, (40, 4)),
        ({"steps": 1000, "train_iters": 2}, (20, 2)),
        ({"time": 1000, "steps": 10}, (10, 1)),
        ({"time": "2h", "steps": 10}, (10, 1)),
    ],
)
def test_the_first_limit_that_is_reached_ends_the_run(
    limits: dict[str, Any], why: tuple[int, int], tmp_path: Path
) -> None:
    result = flowrl.load(GRAPH).run(**limits, out=tmp_path / "r")
    assert (result.env_steps, result.train_iters) == why
    assert (result.status, result.episodes) == ("finished", why[1])


@pytest.mark.parametrize("time", [0.05, "0.05s"])
def test_a_time_in_seconds_or_with_a_unit_ends_a_run(time: float | str, tmp_path: Path) -> None:
    result = flowrl.load(GRAPH).run(time=time, out=tmp_path / "r")
    assert result.why == "0.05 s were asked for"
    assert result.wall_s < 30


@pytest.mark.parametrize("quiet", [False, True])
def test_warnings_of_the_graph_are_printed(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    graph = flowrl.load({"extends": "cartpole_dqn", "nodes": {"evaluator": None}}, {"warmup": None})
    with pytest.raises(UsageError, match="no such placement"):  # before anything is made
        graph.run(set={"collector.counts": False}, placement="none", quiet=quiet)
    assert ("warning: " in capsys.readouterr().err) is not quiet


def test_a_limit_may_be_written_as_a_power(tmp_path: Path) -> None:
    result = flowrl.load(GRAPH).run(train_iters=1e1, out=tmp_path / "r", quiet=True)
    assert result.train_iters == 10


@pytest.mark.parametrize(
    ("limit", "reported"),
    [
        ({"seed": 1.5}, "run: seed is 1.5; expected a whole number from 0 to"),
        ({"seed": True}, "run: seed is True; expected a whole number from 0 to"),
        ({"placement": {"c": "process"}}, "placement is {'c': 'process'}; expected a text"),
        ({"set": "c.steps=3"}, "set is 'c.steps=3'; expected values by key, such as"),
        ({"steps": 0}, "run: steps is 0; expected a whole number of 1 or more"),
        ({"steps": -5}, "run: steps is -5; expected a whole number"),
        ({"train_iters": 0}, "run: train_iters is 0; expected a whole number"),
        ({"train_iters": 2.5}, "run: train_iters is 2.5; expected a whole number"),
        ({"time": 0}, "run: time is 0; expected seconds, or a time such as 30s or 10m"),
        ({"time": "soon"}, "run: time is 'soon'; expected seconds"),
        ({"time": float("nan")}, "run: time is nan; expected seconds"),
    ],
)
def test_an_invalid_limit_is_refused(limit: dict[str, Any], reported: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reported):
        flowrl.load(GRAPH, {"limits.rounds": 3}).run(**limit, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_the_seed_of_a_call_overrides_that_of_the_graph(tmp_path: Path) -> None:
    graph = flowrl.load(GRAPH, {"seed": 5})
    runs = [
        graph.run(seed=seed, train_iters=3, out=tmp_path / f"r{k}")
        for k, seed in enumerate((None, 5, 0, 6))
    ]
    assert [result.seed for result in runs] == [5, 5, 0, 6]
    digests = [result.digest for result in runs]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_result_equals_the_summary_in_its_folder(tmp_path: Path) -> None:
    result = flowrl.load(GRAPH).run(train_iters=4, out=tmp_path / "r")
    reported = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert reported == json.loads(json.dumps(result.as_dict()))


def test_a_run_without_a_folder_makes_one_below_runs(file: Path) -> None:
    result = flowrl.load(file).run(train_iters=1)
    assert Path(result.run_dir).parent == Path("runs")
    assert Path(result.run_dir, "summary.json").is_file()


def test_the_error_of_a_failed_node_has_its_cause(tmp_path: Path) -> None:
    graph = toy_graph({"c": "Source", "f": {"type": "FailingNode", "firing": 1}}, ["c -> f"])
    with pytest.raises(NodeError, match=r"node 'f', firing 1 \(round 1\)") as reported:
        flowrl.load(graph).run(out=tmp_path / "r", steps=100)
    assert isinstance(reported.value.__cause__, ZeroDivisionError)


def test_draw_returns_dot_or_writes_a_file_by_its_ending(tmp_path: Path) -> None:
    graph = flowrl.load(GRAPH)
    assert graph.draw().startswith("digraph")
    assert graph.draw(tmp_path / "g.html") == str(tmp_path / "g.html")
    assert "<html" in (tmp_path / "g.html").read_text()
    assert "actors" in graph.draw(placement="c=thread:actors")
    with pytest.raises(UsageError, match=r"unknown ending '.txt'"):
        graph.draw(tmp_path / "g.txt")


@pytest.mark.parametrize("placement", ["l=thread", "c=thread:a,l=thread:b,e=thread:c"])
def test_a_placement_changes_no_bit(placement: str, tmp_path: Path) -> None:
    graph = flowrl.load(GRAPH)
    serial = graph.run(train_iters=6, out=tmp_path / "serial")
    placed = graph.run(train_iters=6, out=tmp_path / "placed", placement=placement)
    assert placed.digest == serial.digest
    assert placed.placement == placement


def test_an_unknown_graph_is_an_error_of_load_and_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"nothing: there is no such file .* cartpole_a2c"):
        flowrl.load("nothing")
    with pytest.raises(UsageError, match=r"cartpol_dqn: .* did you mean 'cartpole_dqn'\?"):
        flowrl.load("cartpol_dqn")


def test_a_file_that_is_not_yaml_is_an_error_of_load(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text("nodes: {a: [}")
    with pytest.raises(GraphError, match=r"g\.yaml:1:13: is not YAML"):
        flowrl.load(tmp_path / "g.yaml")


def test_a_graph_shows_its_name_its_nodes_and_its_changes(file: Path) -> None:
    assert repr(flowrl.load("g.yaml")) == "<FlowGraph 'g.yaml': c, l, e>"
    assert repr(flowrl.load({**GRAPH, "about": "Toys."}, {"c.steps": 3, "l.stops_at": None})) == (
        "<FlowGraph of plain data (Toys): c, l, e; set c.steps=3, l.stops_at=null>"
    )
    assert repr(flowrl.load({})) == "<FlowGraph of plain data: no nodes>"
    assert repr(flowrl.load({"nodes": 5})) == "<FlowGraph of plain data: no nodes>"


def test_data_extends_a_file_of_the_working_folder_or_a_bundled_graph(file: Path) -> None:
    graph = flowrl.load({"extends": "g.yaml", "nodes": {"c": {"steps": 3}}})
    assert graph.run(train_iters=2, out=file.parent / "r").env_steps == 6
    assert flowrl.load({"extends": "cartpole_dqn"}).check(envs="skip").ok
    with pytest.raises(GraphError, match="there is no graph 'cartpol_dqn'; did you mean 'cartpole"):
        flowrl.load({"extends": "cartpol_dqn"})


def test_values_of_numpy_are_taken_as_those_of_python() -> None:
    given: dict[str, Any] = {
        "c.steps": np.int64(3),
        "limits": {"rounds": np.array(2)},
    }
    graph = flowrl.load(GRAPH, given).check().require_sound().graph
    assert graph.nodes["c"].config.steps == 3
    assert graph.limits.rounds == 2
    data = toy_graph({**NODES, "c": {"type": "Source", "steps": np.int32(4)}}, EDGES)
    assert flowrl.load(data).check().require_sound().graph.nodes["c"].config.steps == 4
    for number in (np.float32(0.5), np.float64(0.5), np.array(0.5)):
        graph = flowrl.load("cartpole_dqn", {"policy.lr": number}).check(envs="skip").graph
        assert graph.nodes["learner"].config.policy.config.lr == 0.5


def test_a_value_that_yaml_cannot_express_is_an_error_of_load() -> None:
    with pytest.raises(UsageError, match=r"set: e\.goal is \{1\}; expected numbers, texts, lists"):
        flowrl.load(GRAPH, {"e.goal": {1}})


def test_a_run_shows_its_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, seen = flowrl.load(GRAPH), list[str]()

    class Ending(Watcher):
        def end(self, run: Run) -> None:
            seen.append(run.graph.name)

    graph.run(train_iters=2, out=tmp_path / "a")
    first, evaluation = capsys.readouterr().out.splitlines()
    assert first == f"graph: seed 0, serial, in {tmp_path / 'a'}"
    assert evaluation.endswith("20 env steps        2 train iters  return 2.00")
    graph.run(train_iters=2, out=tmp_path / "b", quiet=True)
    graph.run(train_iters=2, out=tmp_path / "c", quiet=True, watcher=Ending())
    assert capsys.readouterr().out == ""
    graph.run(train_iters=2, out=tmp_path / "d", watcher=Ending())
    assert capsys.readouterr().out.count("\n") == 2
    assert seen == ["graph", "graph"]


def test_a_watcher_that_fails_ends_the_run_and_its_display(tmp_path: Path) -> None:
    class Failing(Watcher):
        def event(self, run: Run, source: RecordSource, record: Record) -> None:
            raise RuntimeError("no tracker")

        def end(self, run: Run) -> None:
            raise RuntimeError("none at the end, either")

    with pytest.raises(RuntimeError):
        flowrl.load(GRAPH).run(train_iters=2, out=tmp_path / "r", watcher=Failing())
    assert "no tracker" in (tmp_path / "r" / "error.txt").read_text()
    assert not [t for t in threading.enumerate() if t.name == "flowrl progress"]


def test_a_watcher_that_cannot_begin_does_not_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unreachable(Watcher):
        def begin(self, run: Run) -> None:
            raise ConnectionError("no tracker")

        def end(self, run: Run) -> None:
            raise AssertionError

    with pytest.raises(ConnectionError):
        flowrl.load(GRAPH).run(train_iters=2, out=tmp_path / "r", watcher=Unreachable())


@pytest.mark.parametrize("wrong", [print, Watcher])
def test_what_is_no_watcher_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected an object of a class that extends"):
        flowrl.load(GRAPH).run(train_iters=2, out=tmp_path / "r", watcher=wrong)
    assert not (tmp_path / "r").exists()


def test_a_printed_result_is_the_summary_in_words(tmp_path: Path) -> None:
    result = flowrl.load(GRAPH).run(train_iters=2, out=tmp_path / "r", quiet=True)
    first, *_, last = str(result).splitlines()
    assert first == "finished: 2 train iterations were asked for"
    assert last == f"run folder {tmp_path / 'r'}"


def test_the_public_names_are_those_that_are_exported() -> None:
    for name in flowrl.__all__:
        assert getattr(flowrl, name) is not None
    with pytest.raises(AttributeError, match="module 'flowrl' has no attribute 'laod'"):
        flowrl.laod  # noqa: B018


def test_dir_and_help_show_the_public_names() -> None:
    assert set(flowrl.__all__) <= set(dir(flowrl))
    assert "importlib" not in dir(flowrl)
    assert flowrl.nodes.Dqn.__name__ == "Dqn"
    shown = pydoc.render_doc(flowrl, renderer=pydoc.plaintext)
    assert "load(graph:" in shown
    assert "class FlowGraph" in shown
