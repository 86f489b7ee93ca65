"""The serial program S of a graph, planned before any node is made.

S consists of the warm-up phases and the rounds after them. Within a round, nodes fire in topological order (ties by
name), each with all its firings of the round. A paced node fires right after the version that it reads. Every placement
executes this program, and every cut is a position in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flowrl.checks.balance import balance
from flowrl.checks.ordering import firing_order, is_feedback
from flowrl.checks.pacing import paced_components, stream_components
from flowrl.checks.staleness import drops_stale_tokens
from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph, Phase, PortRef


@dataclass(slots=True)
class Schedule:
    """Nodes in the order in which they fire, how often each, and the stream edges that are active then."""

    order: list[str]
    firings: dict[str, int]
    edges: list[Edge]
    rates: dict[PortRef, int] = field(default_factory=dict)
    any_input_nodes: frozenset[str] = frozenset()  # nodes that fire on any input, without a rate
    stale_dropping_inputs: frozenset[PortRef] = frozenset()  # inputs that drop stale tokens

    def active_outputs(self, node: str) -> frozenset[str]:
        """Return the connected stream outputs of a node."""
        return frozenset(s.port for e in self.edges for s in e.sources if s.node == node)


@dataclass(slots=True)
class PacedSchedule:
    """The schedule that is executed after every n-th version of a state."""

    source: PortRef
    every: int
    schedule: Schedule


@dataclass(slots=True)
class WarmUpSchedule:
    """The schedule of a warm-up phase, and its number of rounds."""

    phase: Phase
    schedule: Schedule
    rounds: int


@dataclass(slots=True)
class SerialProgram:
    """The schedules of a graph, and the tokens that fit on its edges."""

    round: Schedule
    paced: list[PacedSchedule] = field(default_factory=list)
    warmup: list[WarmUpSchedule] = field(default_factory=list)
    # The tokens of each source that fit on the edge into an input.
    capacity: dict[PortRef, int] = field(default_factory=dict)
    # The initial tokens of feedback inputs.
    initial: dict[PortRef, int] = field(default_factory=dict)

    @property
    def schedules(self) -> list[Schedule]:
        """The schedule of a round and the paced schedules, without those of the warm-up."""
        return [self.round, *(paced.schedule for paced in self.paced)]

    @property
    def round_schedules(self) -> list[Schedule]:
        """The schedules of rounds: one for each phase of the warm-up, and the one of later rounds."""
        return [*(warm.schedule for warm in self.warmup), self.round]

    def schedule_of(self, node: str) -> Schedule:
        """Return the schedule in which a node fires after the warm-up."""
        for paced in self.paced:
            if node in paced.schedule.firings:
                return paced.schedule
        return self.round

    def rate(self, ref: PortRef) -> int:
        """Return the rate of a stream port; 1 if it is not connected."""
        return self.schedule_of(ref.node).rates.get(ref, 1)


def plan_program(
    graph: Graph, problems: list[Problem], incomplete: frozenset[str] = frozenset()
) -> SerialProgram:
    """Plan the program of a graph. Problems are appended to `problems`; without any, the program can be executed."""
    components = stream_components(graph)
    paced = paced_components(graph, components, incomplete, problems)
    problems.extend(_replica_problems(graph))
    in_round = [n for n in graph.nodes if components[n] not in paced]
    program = SerialProgram(make_schedule(graph, in_round, problems))
    for component, edge in paced.items():
        schedule = make_schedule(
            graph, [n for n in graph.nodes if components[n] == component], problems
        )
        program.paced.append(PacedSchedule(edge.source, edge.every or 1, schedule))
    program.paced.sort(key=lambda p: (p.source.node, p.schedule.order))
    _set_capacities(graph, program, problems)
    return program


def make_schedule(
    graph: Graph,
    names: Iterable[str],
    problems: list[Problem],
    edges: Iterable[Edge] | None = None,
    rates: Mapping[PortRef, int] | None = None,
) -> Schedule:
    """Plan the schedule of some nodes. Services that do not fire are left out."""
    fired = {n for n in names if graph.nodes[n].fires}
    streams = graph.edges if edges is None else edges
    inside = [e for e in streams if e.kind == "stream" and e.to.node in fired]
    any_input_nodes = frozenset(n for n in fired if graph.nodes[n].fires_on_any)
    active = [e.with_sources_in(fired) for e in inside]
    bound = [e for e in active if not _is_unbalanced(e, any_input_nodes)]
    solved = balance(graph, sorted(fired), bound, rates)
    problems.extend(solved.problems)
    for ref in (ref for e in inside for ref in (*e.sources, e.to)):
        solved.rates.setdefault(ref, graph.nodes[ref.node].rate(ref.port) or 1)
    order = firing_order(graph, fired, active, problems)
    stale_dropping_inputs = frozenset(e.to for e in inside if drops_stale_tokens(graph, e))
    return Schedule(
        order, solved.firings, inside, solved.rates, any_input_nodes, stale_dropping_inputs
    )


def _is_unbalanced(edge: Edge, any_input_nodes: frozenset[str]) -> bool:
    """Return whether the tokens given to an edge and taken from it need not balance."""
    return edge.to.node in any_input_nodes or any(
        source.node in any_input_nodes for source in edge.sources
    )


def _replica_problems(graph: Graph) -> Iterable[Problem]:
    """Yield a problem for each stream between two nodes whose numbers of replicas do not fit."""
    for edge in graph.edges:
        to = graph.nodes[edge.to.node]
        for source in edge.sources if edge.kind == "stream" else ():
            count = graph.nodes[source.node].replicas
            if to.replicas > 1 and count not in (1, to.replicas) and not to.is_group:
                what = f"{edge}: {source.node} has {count} replicas and {to.name} has {to.replicas}"
                hint = "give them the same number, or let one of them have 1"
                yield Problem(str(edge.location), what, hint)


def _set_capacities(graph: Graph, program: SerialProgram, problems: list[Problem]) -> None:
    """Set each stream edge's capacity to one round of tokens or to the graph's value, which is checked."""
    for schedule in program.schedules:
        for edge in schedule.edges:
            needed = schedule.firings[edge.to.node] * schedule.rates[edge.to]
            if edge.to.node in schedule.any_input_nodes:  # they may take all tokens of a round
                gives = (schedule.firings[s.node] * schedule.rates[s] for s in edge.sources)
                needed = max(needed, *gives)
            if is_feedback(graph, edge):
                program.initial[edge.to] = needed
            program.capacity[edge.to] = edge.capacity or needed
            rate = schedule.rates[edge.to]
            if edge.capacity is not None and edge.capacity < rate:
                what = f"{edge}: its capacity is {edge.capacity} and {edge.to.node} takes {rate} at once"
                hint = f"write 'capacity: {needed}' or more, or leave it out"
                problems.append(Problem(str(edge.location), what, hint))
                continue
            if edge.capacity is not None and edge.capacity < needed and edge.when_full == "wait":
                what = f"{edge}: its capacity is {edge.capacity} and one round puts {needed} tokens on it"
                hint = f"write 'capacity: {needed}' or more, or leave it out"
                problems.append(Problem(str(edge.location), what, hint))
