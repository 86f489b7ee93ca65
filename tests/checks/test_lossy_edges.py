"""Edges that must be lossy because they are joined with a lossy edge."""

from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from tests.toys.toy_runs import run, toy_graph

DROP = {"when_full": "drop_oldest", "capacity": 1}


def problems(nodes: dict[str, Any], edges: list[Any]) -> list[str]:
    return [str(p) for p in check(load_data(toy_graph(nodes, edges))).problems]


def test_a_stream_joined_with_a_lossy_one_must_be_lossy() -> None:
    nodes = {"s": {"type": "Source", "give": 4}, "g": "Relay", "j": "Join"}
    edges = [{"s -> g": DROP}, "g -> j.left"]
    words = "j joins its tokens with those of a lossy edge, so that they would pile up; "
    hint = "write 'when_full: drop_oldest' at this edge, too"
    assert problems(nodes, [*edges, "s -> j.right"]) == [
        f"graph: {edge}: {words}{hint}" for edge in ("g.out -> j.left", "s.data -> j.right")
    ]
    whole = toy_graph(nodes, [{"s -> g": DROP}, {"g -> j.left": DROP}, {"s -> j.right": DROP}])
    assert run(whole, rounds=3)[1].lines_of("j") == ["3 and 3", "7 and 7", "11 and 11"]


def test_a_stream_joined_with_a_lossy_one_must_be_lossy_with_merge_any_too() -> None:
    """Found by a random graph: the right input filled up, its producer blocked, and the run could not end."""
    nodes = {"s": {"type": "Source", "give": 4}, "t": {"type": "Source", "give": 4}, "j": "Join"}
    edges = [{"s -> j.left": DROP}, {"t -> j.right": {"merge": "any"}}]
    words = "j joins its tokens with those of a lossy edge, so that they would pile up; "
    hint = "write 'when_full: drop_oldest' at this edge, too"
    assert problems(nodes, edges) == [f"graph: t.data -> j.right: {words}{hint}"]
    lossy = {**DROP, "merge": "any"}
    assert problems(nodes, [edges[0], {"t -> j.right": lossy}]) == []


def test_streams_of_replicas_that_lose_different_tokens_must_be_lossy() -> None:
    nodes = {
        "s": {"type": "Source", "give": 4},
        "r": {"type": "Relay", "replicas": 2},
        "d": "Drain",
    }
    [problem] = problems(nodes, [{"s -> r": DROP}, "r -> d"])
    assert problem.startswith("graph: r.out -> d.data: d joins its tokens")
    assert problems(nodes, [{"s -> r": DROP}, {"r -> d": {"merge": "any"}}]) == []


@pytest.mark.parametrize("edges", [["s -> g", "g -> d"], [{"s -> g": DROP}, "g -> d"]])
def test_a_single_stream_behind_a_lossy_one_may_be_lossless(edges: list[Any]) -> None:
    nodes = {"s": {"type": "Source", "give": 4}, "g": "Relay", "d": "Drain"}
    assert problems(nodes, edges) == []


def test_streams_between_equal_numbers_of_replicas_may_be_lossless() -> None:
    nodes = {
        "s": {"type": "Source", "replicas": 2},
        "g": {"type": "Relay", "replicas": 2},
        "d": {"type": "Drain", "replicas": 2},
    }
    assert problems(nodes, [{"s -> g": DROP}, "g -> d"]) == []
