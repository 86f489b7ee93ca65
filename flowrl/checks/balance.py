"""The balance equations: how often each node fires in a round, so that streams give what they take.

One equation for each source of each stream edge: firings(a) * given = firings(b) * taken. An `auto`
port stands in them for the tokens that it moves in a round; its rate is that number shared out over
the firings of its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm

from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph, PortRef

MOST_FIRINGS = 10**9  # of a node in a round: more is a mistake in a rate

Key = str | PortRef  # a node: its firings in a round; an `auto` port: its tokens in a round


@dataclass(slots=True)
class Balance:
    """Firings of a node (of each replica) in a round, and the rate of every stream port."""

    firings: dict[str, int] = field(default_factory=dict)
    rates: dict[PortRef, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Equation:
    """a * given = b * taken."""

    edge: Edge
    source: PortRef
    a: Key
    given: int
    b: Key
    taken: int


def balance(
    graph: Graph,
    names: Iterable[str],
    edges: Iterable[Edge],
    known: Mapping[PortRef, int] | None = None,
) -> Balance:
    """Solve for the given nodes and stream edges; `known` are `auto` rates settled before."""
    found, edges = Balance(), list(edges)
    found.rates = _rates(graph, edges, known or {}, found.problems)
    ordered = [e for e in edges if e.merge != "any"]
    equations = [eq for edge in ordered for eq in _equations(graph, edge, found.rates)]
    autos = dict.fromkeys(k for eq in equations for k in (eq.a, eq.b) if isinstance(k, PortRef))
    ratios = _Ratios([*names, *autos])
    for equation in equations:
        _solve(equation, ratios, found.problems)
    for group in list(ratios.members.values()):
        ratios.whole(next(iter(group)))
    for port in autos:
        _share_out(port, equations, ratios, found)
    for edge in edges:
        if edge.merge == "any":
            _solve_any(graph, edge, ratios, found)
    values = {key: int(ratios.value(key)) for key in ratios.of}
    found.firings = {n: value for n, value in values.items() if isinstance(n, str)}
    found.problems += _too_many(graph, found.firings)
    return found


def _rates(
    graph: Graph, edges: Iterable[Edge], known: Mapping[PortRef, int], problems: list[Problem]
) -> dict[PortRef, int]:
    """The rates that are numbers or parameters."""
    found: dict[PortRef, int] = {}
    for ref in (ref for edge in edges for ref in (*edge.sources, edge.to)):
        spec = graph.nodes[ref.node]
        rate = known.get(ref, spec.rate(ref.port))
        if rate is None or ref in found:
            continue
        if rate < 1:
            param = str(spec.rate_param(ref.port))
            what = f"nodes.{ref.node}: {param} is {rate}, and it is the rate of '{ref.port}'"
            problems.append(Problem(str(spec.location(param)), what, "make it 1 or more"))
        found[ref] = max(rate, 1)
    return found


def _equations(graph: Graph, edge: Edge, rates: Mapping[PortRef, int]) -> Iterator[_Equation]:
    """A fan-in takes one token of each replica; to several replicas tokens are dealt in turn."""
    to = graph.nodes[edge.to.node]
    for source in edge.sources:
        deal = to.replicas if graph.nodes[source.node].replicas == 1 else 1
        a: Key = source.node if source in rates else source
        b: Key = edge.to.node if edge.to in rates else edge.to
        yield _Equation(edge, source, a, rates.get(source, 1), b, rates.get(edge.to, 1) * deal)


class _Ratios:
    """Components of unknowns that stand in known ratios; each has the smallest whole numbers."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.of: dict[Key, int] = {key: i for i, key in enumerate(keys)}
        self.members = {i: {key: Fraction(1)} for key, i in self.of.items()}

    def value(self, key: Key) -> Fraction:
        return self.members[self.of[key]][key]

    def joined(self, a: Key, b: Key) -> bool:
        return self.of[a] == self.of[b]

    def unite(self, a: Key, b: Key, scale: Fraction) -> None:
        """Join b's component to a's, its numbers times `scale`."""
        into, gone = self.of[a], self.of[b]
        if len(self.members[gone]) > len(self.members[into]):
            into, gone, scale = gone, into, 1 / scale
        for key, value in self.members.pop(gone).items():
            self.members[into][key] = value * scale
            self.of[key] = into

    def whole(self, key: Key) -> None:
        """Make the numbers of a component whole, and as small as they can be."""
        group = self.members[self.of[key]]
        least = lcm(*(v.denominator for v in group.values()))
        common = gcd(*(int(v * least) for v in group.values()))
        for member in group:
            group[member] = group[member] * least / common


def _solve(equation: _Equation, ratios: _Ratios, problems: list[Problem]) -> None:
    want = ratios.value(equation.a) * equation.given / equation.taken
    if not ratios.joined(equation.a, equation.b):
        ratios.unite(equation.a, equation.b, want / ratios.value(equation.b))
    elif ratios.value(equation.b) != want:
        problems.append(_unbalanced(equation, ratios))


def _share_out(
    port: PortRef, equations: Iterable[_Equation], ratios: _Ratios, found: Balance
) -> None:
    """The rate of an `auto` port: its tokens over the firings of its node, which must be whole."""
    rate = ratios.value(port) / ratios.value(port.node)
    if not ratios.joined(port, port.node):
        ratios.unite(port.node, port, Fraction(rate.denominator))
        ratios.whole(port)
        rate = ratios.value(port) / ratios.value(port.node)
    found.rates[port] = max(int(rate), 1)
    if rate.denominator > 1:
        equation = next(e for e in equations if port in (e.a, e.b))
        moved, times = ratios.value(port), ratios.value(port.node)
        what = (
            f"the edge {equation.source} -> {equation.edge.to} does not balance: no whole rate of "
            f"{port} moves {_shown(moved)} tokens in {_shown(times)} firings"
        )
        found.problems.append(Problem(str(equation.edge.location), what, "change a rate beside it"))


def _solve_any(graph: Graph, edge: Edge, ratios: _Ratios, found: Balance) -> None:
    """An unordered fan-in takes whatever comes: all that its sources give."""
    first, to = edge.source.node, edge.to.node
    for source in edge.sources:
        if not ratios.joined(first, source.node):
            ratios.unite(first, source.node, Fraction(1))
    given = Fraction(0)
    for source in edge.sources:
        rate = found.rates.setdefault(source, 1)
        given += ratios.value(source.node) * rate * graph.nodes[source.node].replicas
    taken = found.rates.setdefault(edge.to, 1) * graph.nodes[to].replicas
    if not ratios.joined(first, to):
        ratios.unite(first, to, given / taken / ratios.value(to))
        ratios.whole(to)
    elif ratios.value(to) * taken != given:
        what = (
            f"the edge {edge} does not balance: in a round its sources give {_shown(given)} tokens "
            f"and {to} takes {_shown(ratios.value(to) * taken)}"
        )
        found.problems.append(
            Problem(str(edge.location), what, "change a rate on a path between them")
        )


def _unbalanced(equation: _Equation, ratios: _Ratios) -> Problem:
    source, to = equation.source, equation.edge.to
    a, b = ratios.value(equation.a), ratios.value(equation.b)
    least = lcm(a.denominator, b.denominator)
    times = Fraction(least, gcd(int(a * least), int(b * least)))
    gives = _moved(equation.a, a * times, equation.given)
    takes = _moved(equation.b, b * times, equation.taken)
    what = (
        f"the edge {source} -> {to} does not balance: in a round {source.node} gives {gives} "
        f"and {to.node} takes {takes}"
    )
    hints = []
    if equation.a != source and (b * equation.taken / a).denominator == 1:
        hints.append(f"let {source} give {_shown(b * equation.taken / a)} in each firing")
    if equation.b != to and (a * equation.given / b).denominator == 1:
        hints.append(f"let {to} take {_shown(a * equation.given / b)} in each firing")
    hint = ", or ".join(hints) or "change a rate on another path between the two"
    return Problem(str(equation.edge.location), what, hint)


def _moved(key: Key, value: Fraction, rate: int) -> str:
    tokens = value * rate
    text = f"{_shown(tokens)} token{'s' if tokens != 1 else ''}"
    if isinstance(key, PortRef):
        return text
    return f"{text} ({_shown(value)} firing{'s' if value != 1 else ''} of {rate})"


def _too_many(graph: Graph, firings: Mapping[str, int]) -> Iterator[Problem]:
    name = max(firings, key=lambda n: firings[n], default="")
    if name and firings[name] > MOST_FIRINGS:
        what = f"nodes.{name}: a round would be {_shown(firings[name])} firings of it"
        hint = "rates with large common factors keep rounds short"
        yield Problem(str(graph.nodes[name].location()), what, hint)


def _shown(number: Fraction | int) -> str:
    """A number as a person reads it: Python writes no integers of many thousand digits."""
    if number < 10**15:
        return str(number)
    return f"about 10^{int((int(number).bit_length() - 1) * 0.30103)}"
