"""A graph of a thousand nodes; `python -m bench check` says how long it takes."""

from __future__ import annotations

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
