"""Solves the balance equations: how often each node fires in a round, so that streams balance.

There is one equation for each source of each stream edge:
firings(producer) * produced per firing = firings(consumer) * consumed per firing.
An `auto` port is an unknown of its own: the tokens that pass it in a round. Its rate is that number divided by the
firings of its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm

from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph, PortRef

MOST_FIRINGS = 10**9  # of a node in a round; more is a mistake in a rate

Key = str | PortRef  # a node: its firings in a round; an `auto` port: its tokens in a round


@dataclass(slots=True)
class Balance:
    """The firings of each node (of each replica) in a round, and the rate of every stream port."""

    firings: dict[str, int] = field(default_factory=dict)
    rates: dict[PortRef, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Equation:
    """producer * given = consumer * taken, where `producer` and `consumer` are unknowns."""

    edge: Edge
    source: PortRef
    producer: Key
    given: int
    consumer: Key
    taken: int


def balance(
    graph: Graph,
    names: Iterable[str],
    edges: Iterable[Edge],
    known: Mapping[PortRef, int] | None = None,
) -> Balance:
    """Solve the equations of these nodes and stream edges. `known` are rates of `auto` ports that are fixed already."""
    found, edges = Balance(), list(edges)
    found.rates = _rates(graph, edges, known or {}, found.problems)
    ordered = [e for e in edges if e.merge != "any"]
    equations = [eq for edge in ordered for eq in _equations(graph, edge, found.rates)]
    unknowns = (key for eq in equations for key in (eq.producer, eq.consumer))
    autos = dict.fromkeys(key for key in unknowns if isinstance(key, PortRef))
    ratios = _Ratios([*names, *autos])
    for equation in equations:
        _solve(equation, ratios, found.problems)
    for component in list(ratios.members.values()):
        ratios.make_whole(next(iter(component)))
    for port in autos:
        _set_auto_rate(port, equations, ratios, found)
    for edge in edges:
        if edge.merge == "any":
            _solve_unordered(graph, edge, ratios, found)
    values = {key: int(ratios.value(key)) for key in ratios.component_of}
    found.firings = {n: value for n, value in values.items() if isinstance(n, str)}
    found.problems += _too_many_firings(graph, found.firings)
    return found


def _rates(
    graph: Graph, edges: Iterable[Edge], known: Mapping[PortRef, int], problems: list[Problem]
) -> dict[PortRef, int]:
    """Return the rates that are numbers or parameters."""
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
    """Yield an edge's equations. A fan-in takes one token of each replica; several consumers take tokens in turn.

    The replicas of a group take their parts of the same token.
    """
    to = graph.nodes[edge.to.node]
    for source in edge.sources:
        is_dealt = graph.nodes[source.node].replicas == 1 and not to.is_group
        consumers = to.replicas if is_dealt else 1
        producer: Key = source.node if source in rates else source
        consumer: Key = edge.to.node if edge.to in rates else edge.to
        given, taken = rates.get(source, 1), rates.get(edge.to, 1) * consumers
        yield _Equation(edge, source, producer, given, consumer, taken)


class _Ratios:
    """Unknowns in components. Within one all ratios are known; its values are scaled to the smallest whole numbers."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.component_of: dict[Key, int] = {key: i for i, key in enumerate(keys)}
        self.members = {i: {key: Fraction(1)} for key, i in self.component_of.items()}

    def value(self, key: Key) -> Fraction:
        return self.members[self.component_of[key]][key]

    def are_joined(self, a: Key, b: Key) -> bool:
        return self.component_of[a] == self.component_of[b]

    def unite(self, a: Key, b: Key, scale: Fraction) -> None:
        """Join b's component to a's, with its numbers times `scale`."""
        into, gone = self.component_of[a], self.component_of[b]
        if len(self.members[gone]) > len(self.members[into]):
            into, gone, scale = gone, into, 1 / scale
        for key, value in self.members.pop(gone).items():
            self.members[into][key] = value * scale
            self.component_of[key] = into

    def make_whole(self, key: Key) -> None:
        """Scale a component to the smallest whole numbers."""
        values = self.members[self.component_of[key]]
        least = lcm(*(value.denominator for value in values.values()))
        common = gcd(*(int(value * least) for value in values.values()))
        for member in values:
            values[member] = values[member] * least / common


def _solve(equation: _Equation, ratios: _Ratios, problems: list[Problem]) -> None:
    a, b = equation.producer, equation.consumer
    wanted = ratios.value(a) * equation.given / equation.taken
    if not ratios.are_joined(a, b):
        ratios.unite(a, b, wanted / ratios.value(b))
    elif ratios.value(b) != wanted:
        problems.append(_unbalanced_problem(equation, ratios))


def _set_auto_rate(
    port: PortRef, equations: Iterable[_Equation], ratios: _Ratios, found: Balance
) -> None:
    """Set the rate of an `auto` port: its tokens in a round, divided by the firings of its node. It must be whole."""
    rate = ratios.value(port) / ratios.value(port.node)
    if not ratios.are_joined(port, port.node):
        ratios.unite(port.node, port, Fraction(rate.denominator))
        ratios.make_whole(port)
        rate = ratios.value(port) / ratios.value(port.node)
    found.rates[port] = max(int(rate), 1)
    if rate.denominator > 1:
        equation = next(e for e in equations if port in (e.producer, e.consumer))
        moved, times = ratios.value(port), ratios.value(port.node)
        what = (
            f"the edge {equation.source} -> {equation.edge.to} does not balance: no whole rate of "
            f"{port} moves {_number_text(moved)} tokens in {_number_text(times)} firings"
        )
        found.problems.append(Problem(str(equation.edge.location), what, "change a rate beside it"))


def _solve_unordered(graph: Graph, edge: Edge, ratios: _Ratios, found: Balance) -> None:
    """Balance an unordered fan-in (`merge: any`), which takes all tokens of its sources."""
    first, to = edge.source.node, edge.to.node
    for source in edge.sources:
        if not ratios.are_joined(first, source.node):
            ratios.unite(first, source.node, Fraction(1))
    given = Fraction(0)
    for source in edge.sources:
        rate = found.rates.setdefault(source, 1)
        given += ratios.value(source.node) * rate * graph.nodes[source.node].replicas
    taken = found.rates.setdefault(edge.to, 1) * graph.nodes[to].replicas
    if not ratios.are_joined(first, to):
        ratios.unite(first, to, given / taken / ratios.value(to))
        ratios.make_whole(to)
    elif ratios.value(to) * taken != given:
        what = (
            f"the edge {edge} does not balance: in a round its sources give {_number_text(given)} tokens "
            f"and {to} takes {_number_text(ratios.value(to) * taken)}"
        )
        found.problems.append(
            Problem(str(edge.location), what, "change a rate on a path between them")
        )


def _unbalanced_problem(equation: _Equation, ratios: _Ratios) -> Problem:
    source, to = equation.source, equation.edge.to
    a, b = ratios.value(equation.producer), ratios.value(equation.consumer)
    least = lcm(a.denominator, b.denominator)
    times = Fraction(least, gcd(int(a * least), int(b * least)))
    gives = _tokens_text(equation.producer, a * times, equation.given)
    takes = _tokens_text(equation.consumer, b * times, equation.taken)
    what = (
        f"the edge {source} -> {to} does not balance: in a round {source.node} gives {gives} "
        f"and {to.node} takes {takes}"
    )
    hints = []
    if equation.producer != source and (b * equation.taken / a).denominator == 1:
        hints.append(f"let {source} give {_number_text(b * equation.taken / a)} in each firing")
    if equation.consumer != to and (a * equation.given / b).denominator == 1:
        hints.append(f"let {to} take {_number_text(a * equation.given / b)} in each firing")
    hint = ", or ".join(hints) or "change a rate on another path between the two"
    return Problem(str(equation.edge.location), what, hint)


def _tokens_text(key: Key, value: Fraction, rate: int) -> str:
    tokens = value * rate
    text = f"{_number_text(tokens)} token{'s' if tokens != 1 else ''}"
    if isinstance(key, PortRef):
        return text
    return f"{text} ({_number_text(value)} firing{'s' if value != 1 else ''} of {rate})"


def _too_many_firings(graph: Graph, firings: Mapping[str, int]) -> Iterator[Problem]:
    name = max(firings, key=lambda n: firings[n], default="")
    if name and firings[name] > MOST_FIRINGS:
        what = f"nodes.{name}: a round would be {_number_text(firings[name])} firings of it"
        hint = "rates with large common factors keep rounds short"
        yield Problem(str(graph.nodes[name].location()), what, hint)


def _number_text(number: Fraction | int) -> str:
    """Format a number; a very large one as a power of ten, as Python refuses to print thousands of digits."""
    if number < 10**15:
        return str(number)
    return f"about 10^{int((int(number).bit_length() - 1) * 0.30103)}"
