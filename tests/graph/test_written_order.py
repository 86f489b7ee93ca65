"""The order in which a file lists nodes and edges, and the form in which it writes them, change no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from tests.toys.toy_runs import logged_lines, toy_graph

NODES: dict[str, Any] = {
    "c": {"type": "Source", "replicas": 2, "steps": 5},
    "s": "Split",
    "j": "Join",
    "b": {"type": "Buffer", "updates": 2},
    "l": "Learner",
    "e": "Evaluator",
    "d": {"type": "Drain", "clock": True},
    "f": "StateFollower",
}
EDGES: list[Any] = [
    "c -> s",
    "s.left -> j.left",
    "s.right -> j.right",
    "j -> b",
    "b -> l",
    {"l.priorities -> b.priorities": {}},
    {"l.weights -> c.weights": {"lag": 1}},
    {"l.weights -> e": {"every": 3}},
    "j -> d",
    "b -> f.data",
    "l.weights -> f.weights",
]


def by_node(nodes: dict[str, Any], edges: list[Any], **more: Any) -> dict[str, list[str]]:
    """The reports by instance."""
    found: dict[str, list[str]] = {}
    for line in logged_lines(toy_graph(nodes, edges, **more), train_iters=18):
        key, _, text = line.partition(": ")
        found.setdefault(key, []).append(text)
    return found


USUAL = by_node(NODES, EDGES)


def test_the_usual_order_has_tokens_of_every_node() -> None:
    assert set(USUAL) == {*NODES, "c#1"}
    assert all(len(reported) >= 2 for reported in USUAL.values())


@settings(max_examples=40, deadline=None)
@given(st.permutations(list(NODES)), st.permutations(EDGES))
def test_nodes_and_edges_may_be_written_in_any_order(names: list[str], edges: list[Any]) -> None:
    assert by_node({name: NODES[name] for name in names}, edges) == USUAL


@pytest.mark.parametrize(
    "edges",
    [
        ["c -> s", "s.left -> j.left", "s.right -> j.right", "j -> b -> l", *EDGES[5:]],
        ["c.data -> s.data", "s.left -> j.left", "s.right -> j.right", "j.out -> b.data",
         "b.batches -> l.data", *EDGES[5:]],
    ],
    ids=["chains", "ports in full"],
)  # fmt: skip
def test_an_edge_may_be_written_short_or_in_full(edges: list[Any]) -> None:
    assert by_node(NODES, edges) == USUAL


WRITTEN: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {
    "c.steps=7": ({"c": {**NODES["c"], "steps": 7}}, EDGES, {}),
    "b.updates=3": ({"b": {"type": "Buffer", "updates": 3}}, EDGES, {}),
    "c.replicas=3": ({"c": {**NODES["c"], "replicas": 3}}, EDGES, {}),
    "e.weights.every=2": (
        {},
        [{"l.weights -> e": {"every": 2}} if "l.weights -> e" in edge else edge for edge in EDGES],
        {},
    ),
    "seed=5": ({}, EDGES, {"seed": 5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("word", WRITTEN)
def test_a_value_that_is_set_is_as_if_it_were_written(word: str, tmp_path: Path) -> None:
    key, _, value = word.partition("=")
    nodes, edges, more = WRITTEN[word]
    given = flowrl.load(toy_graph(NODES, EDGES), {key: int(value)})
    written = flowrl.load(toy_graph({**NODES, **nodes}, edges, **more))
    assert given.expand() == written.expand() != flowrl.load(toy_graph(NODES, EDGES)).expand()
    a, b = (g.run(train_iters=12, out=tmp_path / g_) for g, g_ in ((given, "a"), (written, "b")))
    assert (a.digest, a.env_steps) == (b.digest, b.env_steps)


def test_a_node_with_another_name_draws_other_random_numbers(tmp_path: Path) -> None:
    """A node's seed is derived from its name, so only names in the text matter."""
    nodes = {("learner" if k == "l" else k): v for k, v in NODES.items()}
    text = [
        {k.replace("l.", "learner."): v for k, v in edge.items()}
        if isinstance(edge, dict)
        else edge.replace("l.weights", "learner.weights").replace("-> l", "-> learner")
        for edge in EDGES
    ]
    old = flowrl.load(toy_graph(NODES, EDGES)).run(train_iters=6, out=tmp_path / "a")
    new = flowrl.load(toy_graph(nodes, text)).run(train_iters=6, out=tmp_path / "b")
    assert (old.env_steps, old.train_iters) == (new.env_steps, new.train_iters)
    assert old.digest != new.digest
