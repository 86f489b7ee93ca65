"""A graph of a thousand nodes; `python -m bench check` says how long it takes."""

from __future__ import annotations

import sys

import pytest

import flowrl
from bench.check import large_graph
from flowrl.checks.check import check
from flowrl.graph.loading import load_graph


def test_a_thousand_nodes_are_sound(write):
    found = check(load_graph(write(large_graph(1000))))
    assert [str(p) for p in found.problems] == []
    assert len(found.graph.nodes) == 1000
    assert len(found.program.paced) == 100
    assert found.program.warmup[0].rounds == 3  # of 100 chains, 2 collectors, 2 firings, 8 steps


def test_a_mistake_in_each_of_many_chains_is_reported_for_each(write):
    text = large_graph(1000).replace("- collector", "- colector")
    found = check(load_graph(write(text)))
    assert sum("unknown node" in p.what for p in found.problems) == 200
    assert "did you mean" in found.problems[0].hint


def calls_of(nodes: int) -> int:
    """How many Python functions the check of a graph with so many unconnected learners calls."""
    learners = {f"learner{number}": {"type": "learner"} for number in range(nodes)}
    loaded = flowrl.load({"extends": "cartpole_dqn", "nodes": learners})
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = loaded.check()
    finally:
        sys.setprofile(None)
    assert len(found.problems) == 2 * nodes
    return calls


@pytest.mark.slow
def test_the_cost_of_unconnected_nodes_grows_in_proportion_to_their_number() -> None:
    calls_of(10)  # imports
    assert calls_of(400) < 3 * calls_of(200)


def test_only_the_first_of_many_problems_are_shown() -> None:
    learners = {f"learner{number}": {"type": "learner"} for number in range(30)}
    with pytest.raises(flowrl.GraphError) as raised:
        flowrl.load({"extends": "cartpole_dqn", "nodes": learners}).run()
    lines = str(raised.value).splitlines()
    assert len(lines) == 51
    assert lines[-1] == "and 10 more problems"
    assert len(raised.value.problems) == 60


def test_a_misspelt_name_is_found_among_thousands(write):
    text = large_graph(2000).replace("- collector17 ", "- colector17 ")
    [problem, *_] = check(load_graph(write(text))).problems
    assert problem.hint == "did you mean 'collector17'?"
