"""The serial program S of a graph, worked out before anything is made.

S is: the warm-up phases, then rounds; within a round, nodes in topological order (ties by name), each with all
its firings of the round; a paced node's firing right after the version it sees. Every placement executes this
program, and every cut is a position in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flowrl.balance import balance
from flowrl.errors import Problem
from flowrl.graph import Edge, Graph, Phase, PortRef
from flowrl.node import Node
from flowrl.ports import In


@dataclass(slots=True)
class Part:
    """Some nodes in the order they fire, how often each, and the stream edges that are active then."""

    order: list[str]
    firings: dict[str, int]
    edges: list[Edge]
    rates: dict[PortRef, int] = field(default_factory=dict)

    def active_outputs(self, node: str) -> frozenset[str]:
        """The stream outputs of a node that somebody takes."""
        return frozenset(s.port for e in self.edges for s in e.sources if s.node == node)


@dataclass(slots=True)
class Paced:
    """What fires after every n-th version of a state."""

    source: PortRef
    every: int
    part: Part


@dataclass(slots=True)
class WarmUp:
    """A phase of the warm-up: a part, and how many rounds of it."""

    phase: Phase
    part: Part
    rounds: int


@dataclass(slots=True)
class Program:
    """The serial program."""

    round: Part
    paced: list[Paced] = field(default_factory=list)
    warmup: list[WarmUp] = field(default_factory=list)
    capacity: dict[PortRef, int] = field(
        default_factory=dict
    )  # tokens on the edge into an input, each source
    initial: dict[PortRef, int] = field(default_factory=dict)  # initial tokens of a feedback input

    def part_of(self, node: str) -> Part:
        """The part that a node fires in."""
        for paced in self.paced:
            if node in paced.part.firings:
                return paced.part
        return self.round

    def rate(self, ref: PortRef) -> int:
        """The rate of a stream port (1 where nothing is connected)."""
        return self.part_of(ref.node).rates.get(ref, 1)


def is_feedback(graph: Graph, edge: Edge) -> bool:
    """Whether the edge ends in an input that has initial tokens."""
    port = graph.nodes[edge.to.node].port(edge.to.port)
    return isinstance(port, In) and port.initial is not None


def plan(graph: Graph, problems: list[Problem]) -> Program:
    """The program of a graph; what keeps it from being one is noted as problems."""
    streams = [e for e in graph.edges if e.kind == "stream"]
    groups = _stream_groups(graph, streams)
    paced_groups = _paced(graph, groups, problems)
    in_round = [n for n in graph.nodes if groups[n] not in paced_groups]
    program = Program(_part(graph, in_round, streams, problems))
    for group, edge in paced_groups.items():
        names = [n for n in graph.nodes if groups[n] == group]
        program.paced.append(
            Paced(edge.source, edge.every or 1, _part(graph, names, streams, problems))
        )
    program.paced.sort(key=lambda p: (p.source.node, p.part.order))
    _capacities(graph, program, problems)
    return program


def _part(graph: Graph, names: Iterable[str], streams: list[Edge], problems: list[Problem]) -> Part:
    inside = {
        n for n in names if graph.nodes[n].cls.fire is not Node.fire
    }  # a service is called, not fired
    edges = [e for e in streams if e.to.node in inside]
    solved = balance(graph, sorted(inside), edges)
    problems.extend(solved.problems)
    order = topological(graph, inside, edges, problems)
    return Part(order, solved.firings, edges, solved.rates)


def topological(
    graph: Graph, names: set[str], edges: list[Edge], problems: list[Problem]
) -> list[str]:
    """The nodes in the order of their streams, ties by name; a cycle without initial tokens is a problem."""
    after: dict[str, list[str]] = {n: [] for n in names}
    waits = dict.fromkeys(names, 0)
    for edge in edges:
        if is_feedback(graph, edge):
            continue
        for source in edge.sources:
            after[source.node].append(edge.to.node)
            waits[edge.to.node] += 1
    ready = [n for n in names if not waits[n]]
    heapq.heapify(ready)
    order = []
    while ready:
        name = heapq.heappop(ready)
        order.append(name)
        for later in after[name]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, later)
    if len(order) < len(names):
        left = names - set(order)
        problems.append(_cycle(left, edges))
        order += sorted(left)
    return order


def _cycle(left: set[str], edges: list[Edge]) -> Problem:
    """Name one cycle among the nodes that never get ready."""
    before: dict[str, Edge] = {}
    for edge in edges:
        if edge.to.node in left and any(s.node in left for s in edge.sources):
            before.setdefault(edge.to.node, edge)
    name, seen = min(left), []
    while name not in seen:
        seen.append(name)
        name = next(s.node for s in before[name].sources if s.node in left)
    ring = [*seen[seen.index(name) :], name]
    shown = " -> ".join(reversed(ring))
    return Problem(
        str(before[name].mark),
        f"the cycle {shown} has no initial token: each of its nodes waits for the other",
        "close a loop through an input that begins with tokens, or carry state on a state edge",
    )


def _stream_groups(graph: Graph, streams: list[Edge]) -> dict[str, str]:
    """Each node's group of nodes that streams or links join, by the name of one of them."""
    head = {n: n for n in graph.nodes}

    def top(name: str) -> str:
        while head[name] != name:
            head[name] = head[head[name]]
            name = head[name]
        return name

    for edge in graph.edges:
        if edge.kind != "state":
            for source in edge.sources:
                head[top(source.node)] = top(edge.to.node)
    return {n: top(n) for n in graph.nodes}


def _paced(graph: Graph, groups: Mapping[str, str], problems: list[Problem]) -> dict[str, Edge]:
    """The groups that `every` paces, with the edge that does."""
    found: dict[str, Edge] = {}
    for edge in graph.edges:
        if edge.kind != "state":
            continue
        group = groups[edge.to.node]
        if edge.every is not None:
            _pace(edge, group, groups, found, problems)
        elif edge.lag and edge.latest:
            problems.append(
                Problem(
                    str(edge.mark),
                    f"{edge}: 'lag' and 'latest' exclude each other",
                    "leave one out",
                )
            )
    for edge in graph.edges:
        if edge.kind == "state" and edge.every is None and groups[edge.to.node] not in found:
            _needs_pace(graph, edge, groups, problems)
    return found


def _pace(
    edge: Edge,
    group: str,
    groups: Mapping[str, str],
    found: dict[str, Edge],
    problems: list[Problem],
) -> None:
    before = found.get(group)
    if groups[edge.source.node] == group:
        problems.append(
            Problem(
                str(edge.mark),
                f"{edge}: 'every' is for nodes that nothing but state drives, and streams join {edge.to.node} "
                f"to {edge.source.node}",
                "use 'lag' here",
            )
        )
    elif before is not None and (before.source, before.every) != (edge.source, edge.every):
        problems.append(
            Problem(
                str(edge.mark),
                f"{edge}: another pace ({before}, every {before.every}) drives it",
                "leave one out",
            )
        )
    else:
        found[group] = edge
        if edge.lag or edge.latest:
            word = "lag" if edge.lag else "latest"
            problems.append(
                Problem(
                    str(edge.mark),
                    f"{edge}: '{word}' does not go with 'every'",
                    "a paced node sees that version",
                )
            )


def _needs_pace(
    graph: Graph, edge: Edge, groups: Mapping[str, str], problems: list[Problem]
) -> None:
    """A node that only state drives would fire once a round, which nobody means."""
    streams = any(
        edge.to.node == e.to.node or edge.to.node in {s.node for s in e.sources}
        for e in graph.edges
        if e.kind == "stream"
    )
    if not streams:
        problems.append(
            Problem(
                str(edge.mark),
                f"{edge}: nothing but this state drives {edge.to.node}, so it needs a pace",
                f"write '{edge.source.node} -> {edge.to.node}: {{every: 100}}'",
            )
        )


def _capacities(graph: Graph, program: Program, problems: list[Problem]) -> None:
    """Room for one round on every stream edge, checked against what is written."""
    for part in (program.round, *(p.part for p in program.paced)):
        for edge in part.edges:
            if is_feedback(graph, edge):
                taken = part.firings[edge.to.node] * part.rates[edge.to]
                program.initial[edge.to] = taken
            needed = max(part.firings[s.node] * part.rates[s] for s in edge.sources)
            program.capacity[edge.to] = edge.capacity or needed
            if edge.capacity is not None and edge.capacity < needed and edge.when_full == "wait":
                problems.append(
                    Problem(
                        str(edge.mark),
                        f"{edge}: its capacity is {edge.capacity} and one round puts {needed} tokens on it",
                        f"write 'capacity: {needed}' or more, or leave it out",
                    )
                )


# warm-up


def active(
    graph: Graph, phase: Phase, part: Part
) -> tuple[set[str], list[Edge], list[tuple[str, str]]]:
    """The nodes and stream edges on the phase's paths, and the paths that do not exist."""
    after: dict[str, set[str]] = {n: set() for n in graph.nodes}
    before: dict[str, set[str]] = {n: set() for n in graph.nodes}
    for edge in part.edges:
        if not is_feedback(graph, edge):
            for source in edge.sources:
                after[source.node].add(edge.to.node)
                before[edge.to.node].add(source.node)
    nodes: set[str] = set()
    hops: set[tuple[str, str]] = set()
    missing = []
    for starts, ends in phase.paths:
        between = _reach(starts, after) & _reach(ends, before)
        if not between & set(starts) or not between & set(ends):
            missing.append((", ".join(starts), ", ".join(ends)))
        nodes |= between
        hops |= {(x, y) for x in between for y in after[x] & between}
    edges = [e for e in part.edges if any((s.node, e.to.node) in hops for s in e.sources)]
    return nodes, edges, missing


def _reach(starts: Iterable[str], after: Mapping[str, set[str]]) -> set[str]:
    seen, todo = set(starts), list(starts)
    while todo:
        for name in after[todo.pop()]:
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def plan_warmup(
    graph: Graph, program: Program, steps_of: Mapping[str, int], problems: list[Problem]
) -> None:
    """Add the warm-up phases; `steps_of` is the env steps of one firing, by node."""
    for phase in graph.phases:
        nodes, edges, missing = active(graph, phase, program.round)
        for a, b in missing:
            problems.append(
                Problem(
                    str(phase.mark),
                    f"warmup: no stream leads from '{a}' to '{b}'",
                    "list edges of the graph",
                )
            )
        if missing:
            continue
        problems.extend(_idle_inputs(graph, phase, nodes, edges))
        part = _part(graph, nodes, edges, problems)
        rounds = _rounds(graph, phase, part, steps_of, problems)
        if rounds is not None:
            program.warmup.append(WarmUp(phase, part, rounds))


def _idle_inputs(
    graph: Graph, phase: Phase, nodes: set[str], edges: list[Edge]
) -> Iterator[Problem]:
    """A node cannot fire in a phase that leaves a required input out."""
    fed = {e.to for e in edges}
    for name in sorted(nodes):
        for port, spec in graph.nodes[name].cls.ports.items():
            ref = PortRef(name, port)
            if (
                isinstance(spec, In)
                and not spec.optional
                and ref not in fed
                and (edge := graph.edge_into(name, port))
            ):
                yield Problem(
                    str(phase.mark),
                    f"warmup: '{name}' would fire without its input '{port}'",
                    f"add '{edge.source.node} -> {name}' to the phase's edges",
                )


def _rounds(
    graph: Graph, phase: Phase, part: Part, steps_of: Mapping[str, int], problems: list[Problem]
) -> int | None:
    if phase.rounds is not None:
        return phase.rounds
    steps = sum(steps_of.get(n, 0) * part.firings[n] * graph.nodes[n].replicas for n in part.order)
    if not steps:
        problems.append(
            Problem(
                str(phase.mark),
                "warmup: no node of this phase makes a known number of env steps",
                "give its length as 'rounds'",
            )
        )
        return None
    return -(-(phase.steps or 0) // steps)
