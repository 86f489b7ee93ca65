"""The balance equations and the serial program, checked by an independent simulator on random graphs."""

from __future__ import annotations

from collections import Counter
from math import gcd, lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.checks.check import check
from flowrl.core.node import Node
from flowrl.core.ports import AUTO, In, Out
from flowrl.graph.loading import load_data
from flowrl.graph.model import PortRef
from tests.toys import toys

TOYS = "tests.toys.toys:"


def simulate(checked):
    """Run one round token by token: no queue may under- or overflow, and each ends with its initial tokens.

    This is independent of the engine: it uses only ports, firings and capacities, and has its own queues of replicas.
    """
    graph, program = checked.graph, checked.program
    queues = {}  # (edge, source number, producing replica, consuming replica) -> tokens
    schedule = program.round
    for at, edge in enumerate(schedule.edges):
        consumers = graph.nodes[edge.to.node].replicas
        for number, source in enumerate(edge.sources):
            producers = graph.nodes[source.node].replicas
            for a in range(producers):
                for b in range(consumers):
                    if not (producers == consumers and a != b):
                        queues[at, number, a, b] = program.initial.get(edge.to, 0)
    before = dict(queues)
    turns = Counter()
    for name in schedule.order:
        for replica in range(graph.nodes[name].replicas):
            for _ in range(schedule.firings[name]):
                fire(graph, program, schedule, name, replica, queues, turns)
    assert queues == before


def fire(graph, program, schedule, name, replica, queues, turns):
    for at, edge in enumerate(schedule.edges):
        if edge.to.node == name:
            for key in [k for k in queues if k[0] == at and k[3] == replica]:
                queues[key] -= schedule.rates[edge.to]
                assert queues[key] >= 0, f"{edge} underflows"
    for at, edge in enumerate(schedule.edges):
        for number, source in enumerate(edge.sources):
            if source.node != name:
                continue
            keys = sorted(k for k in queues if k[:3] == (at, number, replica))
            for _ in range(schedule.rates[source]):
                key = keys[turns[at, number, replica] % len(keys)]
                turns[at, number, replica] += 1
                queues[key] += 1
                initial = program.initial.get(edge.to, 0)
                assert queues[key] <= program.capacity[edge.to] + initial, f"{edge} overflows"


def node_type(name, ins, outs):
    """Return a node type with these ports, by name and rate."""
    ports = {**{n: In("x", rate) for n, rate in ins.items()}}
    ports |= {n: Out("x", rate) for n, rate in outs.items()}
    code = f"def fire(self{''.join(', ' + n for n in ins)}): pass"
    found = {}
    exec(code, found)
    return type(name, (Node,), {**ports, "fire": found["fire"]})


@st.composite
def consistent_graphs(draw, auto=False):
    """Draw a connected graph with known firings, from which its rates are derived."""
    size = draw(st.integers(2, 8))
    firings = [draw(st.integers(1, 6)) for _ in range(size)]
    pairs = [(draw(st.integers(0, i - 1)), i) for i in range(1, size)]
    pairs += [
        tuple(sorted(draw(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))))
        for _ in range(draw(st.integers(0, 4)))
    ]
    pairs = [(a, b) for a, b in pairs if a != b]
    ins, outs = [{} for _ in firings], [{} for _ in firings]
    edges = []
    for number, (a, b) in enumerate(pairs):
        tokens = lcm(firings[a], firings[b]) * draw(st.integers(1, 3))
        kind = (
            draw(st.sampled_from(["both", "in", "out"])) if auto and number < size - 1 else "both"
        )
        outs[a][f"o{number}"] = AUTO if kind == "in" else tokens // firings[a]
        ins[b][f"i{number}"] = AUTO if kind == "out" else tokens // firings[b]
        edges.append(f"n{a}.o{number} -> n{b}.i{number}")
    return firings, ins, outs, edges


def checked_graph(types, edges, **keys):
    """The checked graph of these node types."""
    nodes = {}
    for name, cls in types.items():
        setattr(toys, f"Made{name}", cls)
        nodes[name] = {"type": f"{TOYS}Made{name}", **keys.get(name, {})}
    return check(load_data({"nodes": nodes, "edges": edges}))


@settings(max_examples=60, deadline=None)
@given(consistent_graphs())
def test_balance_finds_the_smallest_firings_and_a_round_flows(made):
    firings, ins, outs, edges = made
    types = {f"n{i}": node_type(f"N{i}", ins[i], outs[i]) for i in range(len(firings))}
    found = checked_graph(types, edges)
    assert [str(p) for p in found.problems] == []
    common = gcd(*firings)
    assert found.program.round.firings == {f"n{i}": f // common for i, f in enumerate(firings)}
    simulate(found)


@settings(max_examples=60, deadline=None)
@given(consistent_graphs(auto=True))
def test_auto_rates_are_whole_and_a_round_flows(made):
    firings, ins, outs, edges = made
    types = {f"n{i}": node_type(f"N{i}", ins[i], outs[i]) for i in range(len(firings))}
    found = checked_graph(types, edges)
    if not found.problems:  # rates beside a fixed one may still fit nowhere
        simulate(found)
        assert all(rate >= 1 for rate in found.program.round.rates.values())
    else:
        assert all("does not balance" in p.what for p in found.problems)


@settings(max_examples=60, deadline=None)
@given(consistent_graphs(), st.data())
def test_an_edge_that_does_not_balance_is_reported_at_a_cycle_it_is_in(made, data):
    firings, ins, outs, edges = made
    size = len(firings)
    if len(edges) < size:
        return  # a tree always balances
    wrong = data.draw(st.integers(0, len(edges) - 1))
    owner = next(i for i in range(size) if f"o{wrong}" in outs[i])
    outs[owner][f"o{wrong}"] *= 7  # a factor that no firings have
    types = {f"n{i}": node_type(f"N{i}", ins[i], outs[i]) for i in range(size)}
    found = checked_graph(types, edges)
    if is_on_cycle(edges, wrong):
        assert found.problems
        assert all("does not balance" in p.what for p in found.problems)
    else:
        assert found.problems == []
        simulate(found)


def is_on_cycle(edges, wrong):
    """Whether an edge's ends stay connected without it."""
    ends = [tuple(end.split(".")[0] for end in e.split(" -> ")) for e in edges]
    a, b = ends.pop(wrong)
    seen, todo = {a}, [a]
    while todo:
        at = todo.pop()
        for x, y in ends:
            for near, far in ((x, y), (y, x)):
                if near == at and far not in seen:
                    seen.add(far)
                    todo.append(far)
    return b in seen


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
def test_streams_are_dealt_to_replicas_paired_between_them_and_joined_after(a, b, gives, takes):
    types = {
        "s": node_type("S", {}, {"out": gives}),
        "m": node_type("M", {"data": takes}, {"out": a}),
        "n": node_type("N", {"data": 1}, {"out": 1}),
        "t": node_type("T", {"data": b}, {}),
    }
    keys = {"m": {"replicas": 3}, "n": {"replicas": 3}}
    found = checked_graph(types, ["s -> m -> n -> t"], **keys)
    assert found.problems == []
    per_round = found.program.round.firings
    assert per_round["s"] * gives == per_round["m"] * takes * 3
    assert per_round["m"] * a == per_round["n"]
    assert per_round["n"] == per_round["t"] * b  # a fan-in takes one token of each replica
    simulate(found)


def test_unlike_numbers_of_replicas_are_reported():
    types = {
        "s": node_type("S", {}, {"out": 1}),
        "m": node_type("M", {"data": 1}, {"out": 1}),
        "n": node_type("N", {"data": 1}, {}),
    }
    found = checked_graph(types, ["s -> m -> n"], m={"replicas": 2}, n={"replicas": 3})
    assert [str(p) for p in found.problems] == [
        "graph: m.out -> n.data: m has 2 replicas and n has 3; give them the same number, or let "
        "one of them have 1"
    ]


@pytest.mark.parametrize(("replicas", "times"), [(1, 7), (3, 11)])
def test_an_unordered_fan_in_takes_all_that_its_sources_give(replicas, times):
    types = {
        "a": node_type("A", {}, {"out": 2}),
        "b": node_type("B", {}, {"out": 5}),
        "t": node_type("T", {"data": 1}, {}),
    }
    edges = [{"a, b -> t": {"merge": "any"}}]
    found = checked_graph(types, edges, a={"replicas": replicas})
    assert found.problems == []
    assert found.program.round.firings == {"a": 1, "b": 1, "t": times}
    assert found.reasons == ["a.out, b.out -> t.data: merge any (the order depends on speed)"]


def test_an_auto_input_may_have_several_sources_and_readers():
    types = {
        "a": node_type("A", {}, {"out": 2}),
        "b": node_type("B", {}, {"out": 3}),
        "t": node_type("T", {"data": AUTO}, {"out": AUTO}),
        "u": node_type("U", {"data": 4}, {}),
        "v": node_type("V", {"data": AUTO}, {}),
    }
    found = checked_graph(types, ["a, b -> t", "t -> u, v"])
    assert found.problems == []
    assert found.program.round.firings == {"a": 3, "b": 2, "t": 1, "u": 1, "v": 1}
    assert found.program.round.rates[PortRef("t", "data")] == 6
    assert found.program.round.rates[PortRef("t", "out")] == 4
    simulate(found)


def test_feedback_begins_with_one_round_of_tokens():
    nodes = {
        "s": {"type": f"{TOYS}Source", "rate": 3},
        "loop": f"{TOYS}Loop",
        "p": f"{TOYS}Pipe",
    }
    found = check(
        load_data({"nodes": nodes, "edges": ["s -> loop.data", "loop -> p -> loop.back"]})
    )
    assert found.problems == []
    assert found.program.round.order == ["s", "loop", "p"]
    assert found.program.initial == {PortRef("loop", "back"): 3}
    simulate(found)


def test_rounds_are_in_topological_order_and_ties_are_by_name():
    nodes = {n: f"{TOYS}{'Source' if n in 'zya' else 'Sink'}" for n in "zyatuv"}
    edges = ["z -> t", "y -> u", "a -> v"]
    found = check(load_data({"nodes": nodes, "edges": edges}))
    assert found.program.round.order == ["a", "v", "y", "u", "z", "t"]
    shuffled = dict(sorted(nodes.items()))
    again = check(load_data({"nodes": shuffled, "edges": edges[::-1]}))
    assert again.program.round.order == found.program.round.order


def test_a_capacity_of_one_round_is_enough_whatever_the_replicas():
    nodes = {
        "s": {"type": f"{TOYS}Source", "rate": 6},
        "t": {"type": f"{TOYS}Sink", "replicas": 3},
    }
    edges = [{"s -> t": {"capacity": 2}}]
    assert check(load_data({"nodes": nodes, "edges": edges})).problems == []
    edges = [{"s -> t": {"capacity": 1}}]
    assert len(check(load_data({"nodes": nodes, "edges": edges})).problems) == 1
