"""What `bench placement` compares: its graphs are sound, and give the same weights in every placement."""

from __future__ import annotations

from bench import placement


def test_its_nodes_do_the_same_in_every_placement() -> None:
    times = placement.compared(placement.two_nodes(0), rounds=20, repeats=1)
    assert list(times) == ["serial", "threads", "processes"]
    assert min(times.values()) > 0


def test_collecting_and_learning_cost_the_same() -> None:
    loops = placement.calibrated()
    assert loops > 0
    nodes = placement.two_nodes(loops).graph.nodes
    assert {nodes[name].config.loops for name in ("collector", "learner")} == {loops}


def test_what_is_shown_is_held_against_the_serial_run() -> None:
    found = placement.show("title", {"serial": 2.0, "processes": 1.0}, 100)
    assert found["processes (x serial)"] == 2.0
    assert found["serial (us a round)"] == 20_000.0
