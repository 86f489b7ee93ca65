"""`python -m bench placement` compares sound graphs that end with the same weights in every placement."""

from __future__ import annotations

import pytest

from bench import placement


@pytest.mark.slow
def test_its_nodes_end_with_the_same_weights_in_every_placement() -> None:
    times_s = placement.compare_placements(placement.two_node_graph(0), rounds=20, repeats=1)
    assert list(times_s) == ["serial", "threads", "processes"]
    assert min(times_s.values()) > 0


def test_collecting_and_learning_cost_the_same() -> None:
    loops = placement.calibrate_loops()
    assert loops > 0
    nodes = placement.two_node_graph(loops).graph.nodes
    assert {nodes[name].config.loops for name in ("collector", "learner")} == {loops}


def test_placements_are_compared_with_serial() -> None:
    results = placement.show_placements("title", {"serial": 2.0, "processes": 1.0}, 100)
    assert results["processes (x serial)"] == 2.0
    assert results["serial (us a round)"] == 20_000.0
