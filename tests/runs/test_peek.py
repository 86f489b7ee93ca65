"""`flowrl peek` shows what passes an edge of an active run, in every placement and without changing the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.cli.main import main
from flowrl.core.batch import Batch
from flowrl.core.errors import UsageError
from flowrl.core.state import Count, State
from flowrl.runs.peek import find_edge, output_of, peek_text, wait_for_summary
from flowrl.runtime.status import EdgeStats
from flowrl.runtime.token_summary import PeekRequest, TokenSummary, summarise
from tests.runs.threaded_runs import pair, running_in_a_thread, wait_for_status
from tests.toys.toy_runs import make_executor, run, toy_graph

REQUEST = PeekRequest(1, "a", "data")
PAST = Count(env_steps=1200, train_iters=7)
PLACEMENTS = ["serial", "threads", pytest.param("processes", marks=pytest.mark.slow)]


def summary(value: Any) -> TokenSummary:
    return summarise(REQUEST, value, 3, PAST)


def edge(name: str, kind: str = "stream") -> EdgeStats:
    producer, consumer = (end.rpartition(".")[0] for end in name.replace("<->", "->").split(" -> "))
    return EdgeStats(name, kind, producer, consumer, "x", "y", *[None] * 7)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_next_token_of_a_running_run_is_shown(placement: str, tmp_path: Path) -> None:
    with running_in_a_thread(pair(a={"each_s": 0.002}), tmp_path / "r", placement) as entry:
        status = wait_for_status(entry, lambda found: found.env_steps > 5)
        found = [wait_for_summary(entry, find_edge(status, "a -> b"), _soon) for _ in range(2)]
    first, second = (one for one in found if one is not None)
    assert 5 < first.firing < second.firing
    assert (first.rows, first.env_steps) == (1, first.firing)
    (column,) = first.columns
    assert (column.name, column.type) == ("n", "int64")
    assert column.least == column.mean == column.largest == first.firing + 1
    assert column.rows == (str(first.firing + 1),)


def _soon(waited_s: float) -> bool:
    return waited_s < 20


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: Any) -> None:
    out = str(tmp_path / "r")
    with running_in_a_thread(pair(a={"each_s": 0.002}), tmp_path / "r") as entry:
        wait_for_status(entry, lambda found: found.env_steps > 5)
        assert main(["peek", out]) == 0
        assert capsys.readouterr().out == "a.data -> b.data\n"
        assert main(["peek", out, "b.data"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert main(["peek", out, "b.data", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert main(["peek", out, "b.dta"]) == 2
        wrong = capsys.readouterr().err
    assert lines[0] == "a.data -> b.data"
    assert lines[1].startswith("token of firing ")
    assert lines[4].split() == ["column", "type", "min", "mean", "max", "NaN", "row", "0"]
    assert lines[5].split()[:2] == ["n", "int64"]
    assert (answer["edge"], answer["columns"][0]["name"]) == ("a.data -> b.data", "n")
    assert wrong == "flowrl: b.dta: graph has no such edge; did you mean 'b.data'?\n"


def test_who_waits_too_long_is_told_why(tmp_path: Path, capsys: Any) -> None:
    with running_in_a_thread(pair(a={"hangs_in": 6}), tmp_path / "r") as entry:
        wait_for_status(entry, lambda found: found.env_steps == 6)
        assert main(["peek", str(tmp_path / "r"), "a", "--wait", "0.1s"]) == 1
    expected = "flowrl: a.data -> b.data: a gave nothing in 0.1 s; see `flowrl why`\n"
    assert capsys.readouterr().err == expected


def test_a_look_changes_nothing() -> None:
    graph = toy_graph(
        {"c": "Source", "r": {"type": "RateChanger", "take": 1, "give": 2}, "l": "Learner"},
        ["c -> r -> l", "l.weights -> c.weights"],
    )
    plain, trace, cut = run(graph, rounds=6)
    executor, observed = make_executor(graph, rounds=6)
    for number, output in enumerate(("c.data", "r.out", "l.weights", "x.data")):
        executor.peek(PeekRequest(number, *output.split(".")))
    assert executor.run() == cut
    assert executor.digest() == plain.digest()
    assert observed.lines == trace.lines
    assert sorted(executor.summaries) == [0, 1, 2]
    assert [executor.summaries[n].rows for n in range(3)] == [1, 1, None]


def test_an_output_without_a_token_is_awaited_and_errors_of_a_look_are_its_own() -> None:
    graph = toy_graph({"c": "Source", "l": "LearnerWithoutState"}, ["c -> l"])
    executor, _ = make_executor(graph, rounds=3)
    executor.peek(PeekRequest(1, "l", "weights"))
    executor.run()
    assert executor.summaries[1].text == "LookupError: LookupError('weights are lost')"


def test_numbers_that_are_not_finite_are_counted_and_left_out() -> None:
    numbers = np.array([[1, np.nan], [np.inf, 3], [-np.inf, 5]], np.float32)
    found = summary(Batch({"x": numbers, "none": np.full(3, np.nan), "word": np.array(["a"] * 3)}))
    x, none, word = found.columns
    assert (x.least, x.mean, x.largest, x.nan, x.infinite) == (1, 3, 5, 1, 2)
    assert (none.least, none.mean, none.largest, none.nan, none.infinite) == (None,) * 3 + (3, 0)
    assert (word.least, word.rows) == (None, ("a", "a", "a"))
    lines = peek_text(edge("a.data -> b.data"), found, 200).splitlines()
    assert "1,200 env steps and 7 train iterations" in lines[1]
    assert lines[4].split()[:7] == ["column", "type", "min", "mean", "max", "NaN", "inf"]


def test_states_and_other_tokens_are_shown_too() -> None:
    state = State({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, {"epsilon": 0.1})
    lines = peek_text(edge("l.weights -> c.weights", "state"), summary(state), 200).splitlines()
    assert lines[1:3] == ["version 4 of l, after 1,200 env steps", "24B, epsilon 0.1"]
    assert lines[5].split()[:5] == ["w", "float32[2,3]", "0", "2.5", "5"]
    assert summary([1, 2]).text == "list: [1, 2]"
    assert summary(Batch({"x": np.zeros((0, 2))})).columns[0].rows == ()


def test_as_many_rows_are_shown_as_fit_in() -> None:
    found = summary(Batch({"x": np.ones((5, 6), np.float32)}))
    heads = [peek_text(edge("a.data -> b.data"), found, w).splitlines()[4] for w in (55, 70, 200)]
    assert [head.count("row") for head in heads] == [1, 2, 3]


@pytest.mark.parametrize(
    "text", ["a.data -> b.in", "a.data->b.in", "a.data", "b.in", "a->b", "a -> b", "b"]
)
def test_an_edge_is_found_by_its_name_its_ports_or_its_nodes(text: str, monkeypatch: Any) -> None:
    edges = [edge("a.data -> b.in"), edge("a.other -> c.in"), edge("e.serve <-> a.envs", "link")]
    status = _StatusOfEdges(edges)
    assert output_of(find_edge(status, text)) == "a.data"  # type: ignore[arg-type]


def test_ambiguous_unknown_and_linking_names_are_refused() -> None:
    edges = [edge("a.data -> b.in"), edge("a.other -> c.in"), edge("e.serve <-> a.envs", "link")]
    status: Any = _StatusOfEdges(edges)
    with pytest.raises(UsageError, match=r"a: is ambiguous; a\.data -> b\.in, a\.other -> c\.in"):
        find_edge(status, "a")
    with pytest.raises(UsageError, match="e: its edges are links, which carry calls and no tokens"):
        find_edge(status, "e")
    with pytest.raises(UsageError, match=r"xyz: g has no such edge; edges: a\.data -> b\.in, a\.o"):
        find_edge(status, "xyz")


class _StatusOfEdges:
    graph = "g"

    def __init__(self, edges: list[EdgeStats]) -> None:
        self.edges = edges
