"""The balance equations: how often each node fires in a round, so that every stream gives what it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm

from flowrl.errors import Problem
from flowrl.graph import Edge, Graph, PortRef


@dataclass(slots=True)
class Balance:
    """Firings of a node (of each replica) in a round, and the rate of every stream port."""

    firings: dict[str, int] = field(default_factory=dict)
    rates: dict[PortRef, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Flow:
    """`given` tokens of each firing of a against `taken` tokens of each firing of b; None is `auto`."""

    edge: Edge
    source: PortRef
    given: int | None
    taken: int | None


def balance(graph: Graph, names: Iterable[str], edges: Iterable[Edge]) -> Balance:
    """Solve the equations over the given nodes and stream edges."""
    found = Balance()
    flows = [flow for edge in edges if edge.merge != "any" for flow in _flows(graph, edge, found)]
    mixed = [edge for edge in edges if edge.merge == "any"]
    fixed = [f for f in flows if f.given is not None and f.taken is not None]
    open_flows = [f for f in flows if f.given is None or f.taken is None]
    ratio = _components(list(names), fixed, found)
    for flow in open_flows:
        _join(ratio, flow)
    for edge in mixed:
        _join_any(graph, edge, ratio, found)
    found.firings = {
        name: int(value) for _, group in ratio.groups() for name, value in group.items()
    }
    _fill_rates(graph, edges, open_flows, found)
    return found


class _Ratios:
    """Components of nodes whose firings stand in known ratios; each has the smallest whole numbers."""

    def __init__(self, names: list[str]) -> None:
        self.of: dict[str, int] = {n: i for i, n in enumerate(names)}
        self.members: dict[int, dict[str, Fraction]] = {
            i: {n: Fraction(1)} for i, n in enumerate(names)
        }

    def groups(self) -> Iterator[tuple[int, dict[str, Fraction]]]:
        yield from self.members.items()

    def value(self, name: str) -> Fraction:
        return self.members[self.of[name]][name]

    def unite(self, a: str, b: str, scale: Fraction) -> None:
        """Join b's component to a's, its numbers times `scale`."""
        into, gone = self.of[a], self.of[b]
        if len(self.members[gone]) > len(self.members[into]):
            into, gone, scale = gone, into, 1 / scale
        for name, value in self.members.pop(gone).items():
            self.members[into][name] = value * scale
            self.of[name] = into

    def whole(self) -> None:
        for group in self.members.values():
            least = lcm(*(v.denominator for v in group.values()))
            common = gcd(*(int(v * least) for v in group.values()))
            for name in group:
                group[name] = group[name] * least / common


def _flows(graph: Graph, edge: Edge, found: Balance) -> Iterator[_Flow]:
    """The equation of each source, replicas counted: a fan-in takes one token of each, streams are dealt in turn."""
    to = graph.nodes[edge.to.node]
    for source in edge.sources:
        spec = graph.nodes[source.node]
        given, taken = spec.rate(source.port), to.rate(edge.to.port)
        if to.replicas > 1 and spec.replicas not in (1, to.replicas):
            found.problems.append(
                Problem(
                    str(edge.mark),
                    f"{source.node} has {spec.replicas} replicas and {edge.to.node} has {to.replicas}",
                    "give them the same number, or let one of them have 1",
                )
            )
        if to.replicas > 1 and spec.replicas == 1 and taken is not None:
            taken *= to.replicas
        yield _Flow(edge, source, given, taken)


def _components(names: list[str], flows: list[_Flow], found: Balance) -> _Ratios:
    ratio = _Ratios(names)
    for flow in flows:
        a, b = flow.source.node, flow.edge.to.node
        assert flow.given is not None
        assert flow.taken is not None
        want = ratio.value(a) * flow.given / flow.taken
        if ratio.of[a] != ratio.of[b]:
            ratio.unite(a, b, want / ratio.value(b))
        elif ratio.value(b) != want:
            found.problems.append(_unbalanced(flow, ratio))
    ratio.whole()
    return ratio


def _unbalanced(flow: _Flow, ratio: _Ratios) -> Problem:
    a, b = ratio.value(flow.source.node), ratio.value(flow.edge.to.node)
    times = lcm(a.denominator, b.denominator)
    gives, takes = a * times * (flow.given or 1), b * times * (flow.taken or 1)
    fits = (b * (flow.taken or 1)) / a
    there = (a * (flow.given or 1)) / b
    hints = []
    if fits.denominator == 1:
        hints.append(f"{flow.source} would have to give {fits} in each firing")
    if there.denominator == 1:
        hints.append(f"{flow.edge.to} would have to take {there}")
    return Problem(
        str(flow.edge.mark),
        f"the edge {flow.source} -> {flow.edge.to} does not balance: in a round {flow.source.node} gives "
        f"{gives} tokens ({a * times} firings of {flow.given}) and {flow.edge.to.node} takes {takes} "
        f"({b * times} firings of {flow.taken})",
        " or ".join(hints) or "change a rate on another path between the two",
    )


def _join(ratio: _Ratios, flow: _Flow) -> None:
    """An `auto` rate joins two parts; the side whose rate is known fires often enough to make the other whole."""
    a, b = flow.source.node, flow.edge.to.node
    if ratio.of[a] == ratio.of[b]:
        return
    if flow.given is None:
        rate = ratio.value(b) * (flow.taken or 1) / ratio.value(a)
        ratio.unite(a, b, Fraction(rate.denominator))
    else:
        rate = ratio.value(a) * flow.given / ratio.value(b)
        ratio.unite(b, a, Fraction(rate.denominator))


def _join_any(graph: Graph, edge: Edge, ratio: _Ratios, found: Balance) -> None:
    """An unordered fan-in takes whatever comes: all its sources give, it takes."""
    to = edge.to.node
    spec = graph.nodes[to]
    taken = (spec.rate(edge.to.port) or 1) * spec.replicas
    for source in edge.sources[1:]:
        if ratio.of[source.node] != ratio.of[edge.source.node]:
            ratio.unite(edge.source.node, source.node, Fraction(1))
    total = sum(
        (
            ratio.value(s.node)
            * (graph.nodes[s.node].rate(s.port) or 1)
            * graph.nodes[s.node].replicas
        )
        for s in edge.sources
    )
    want = Fraction(total) / taken
    if ratio.of[to] != ratio.of[edge.source.node]:
        ratio.unite(edge.source.node, to, want / ratio.value(to))
        ratio.whole()
    elif ratio.value(to) != want:
        found.problems.append(
            Problem(
                str(edge.mark),
                f"the edge {edge} does not balance: its sources give {total} tokens in a round and "
                f"{to} takes {ratio.value(to) * taken}",
                f"{to} would have to fire {want} times",
            )
        )


def _fill_rates(
    graph: Graph, edges: Iterable[Edge], open_flows: list[_Flow], found: Balance
) -> None:
    for edge in edges:
        for ref in (*edge.sources, edge.to):
            rate = graph.nodes[ref.node].rate(ref.port)
            if rate is not None:
                found.rates[ref] = rate
    for flow in open_flows:
        _fill_auto(graph, flow, found)


def _fill_auto(graph: Graph, flow: _Flow, found: Balance) -> None:
    """What balance requires of an `auto` rate; two of them facing each other are 1."""
    source, to = flow.source, flow.edge.to
    deal = graph.nodes[to.node].replicas if graph.nodes[source.node].replicas == 1 else 1
    if flow.given is None and flow.taken is None:
        found.rates.setdefault(to, 1)
    given, taken = found.rates.get(source), found.rates.get(to)
    a, b = found.firings[source.node], found.firings[to.node] * deal
    if given is None and taken is not None:
        rate = Fraction(b * taken, a)
        port, other = source, to
    elif taken is None and given is not None:
        rate = Fraction(a * given, b)
        port, other = to, source
    elif given is not None and taken is not None and a * given != b * taken:
        rate, port, other = Fraction(1, 2), source, to  # an auto rate that two edges want different
    else:
        return
    if rate.denominator == 1 and rate >= 1:
        found.rates[port] = int(rate)
        return
    found.rates.setdefault(port, 1)
    found.problems.append(
        Problem(
            str(flow.edge.mark),
            f"the edge {source} -> {to} does not balance: no whole rate of {port} fits "
            f"({source.node} fires {a} times in a round, {to.node} {found.firings[to.node]})",
            f"give {other} another rate",
        )
    )
