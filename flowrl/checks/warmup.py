"""Plans the warm-up: which nodes fire in a phase, and for how many rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.checks.firing_counts import known_env_steps
from flowrl.checks.ordering import dependency_graph, is_feedback
from flowrl.checks.serial_program import Schedule, SerialProgram, WarmUpSchedule, make_schedule
from flowrl.core.errors import Problem
from flowrl.core.facts import Facts
from flowrl.core.ports import In
from flowrl.graph.model import Edge, Graph, Phase, PortRef


def plan_warmup(
    graph: Graph, program: SerialProgram, steps_of: Mapping[str, int], problems: list[Problem]
) -> None:
    """Add the warm-up phases to the program. `steps_of` is the env steps of one firing, by node."""
    for phase in graph.phases:
        nodes, edges, missing = _active_nodes_and_edges(graph, phase, program.round)
        for a, b in missing:
            what = f"warmup: no stream leads from '{a}' to '{b}'"
            problems.append(Problem(str(phase.location), what, "list edges of the graph"))
        idle = list(_idle_inputs(graph, phase, nodes, edges))
        problems.extend(idle)
        problems.extend(_idle_settings(phase, nodes))
        if missing or idle:
            continue
        schedule = make_schedule(graph, nodes, problems, edges, program.round.rates)
        rounds = _rounds_of_phase(graph, phase, schedule, steps_of, problems)
        if rounds is not None:
            program.warmup.append(WarmUpSchedule(phase, schedule, rounds))


def uncounted_limit(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[Problem]:
    """Yield a warning if the run is to end after env steps, and no collector counts any."""
    limits, collectors = graph.limits, graph.nodes_of_role("collector")
    others = (limits.train_iters, limits.rounds, limits.time_s)
    if limits.steps is None or others != (None, None, None) or not collectors:
        return
    if all(name in facts and facts[name].env_steps == 0 for name in collectors):
        spec = graph.nodes[collectors[0]]
        what = f"limits.steps is {limits.steps}, and no collector's env steps count, so it is never reached"
        hint = "let a collector count its steps, or give another limit, such as train_iters"
        yield Problem(str(spec.location("counts")), what, hint, warning=True)


def limit_within_warmup(
    graph: Graph, program: SerialProgram, facts: Mapping[str, Facts]
) -> Iterator[Problem]:
    """Yield a warning if the warm-up alone reaches the limit of env steps."""
    limit, known = graph.limits.steps, known_env_steps(graph, program, facts)
    if limit is not None and known is not None and known[0] >= limit:
        taken = f"warmup: it takes {known[0]:,} env steps, and limits.steps is {limit:,}"
        what = f"{taken}; so the run ends one round later"
        hint = "raise the limit, or shorten the warm-up"
        yield Problem(str(graph.phases[0].location), what, hint, warning=True)


def _active_nodes_and_edges(
    graph: Graph, phase: Phase, schedule: Schedule
) -> tuple[set[str], list[Edge], list[tuple[str, str]]]:
    """Return the nodes and stream edges on the phase's paths, and the ends of paths that do not exist."""
    flow = dependency_graph(graph.nodes, [e for e in schedule.edges if not is_feedback(graph, e)])
    nodes: set[str] = set()
    hops: set[tuple[str, str]] = set()
    missing = []
    for starts, ends in phase.paths:
        between = flow.downstream(starts) & flow.upstream(ends)
        if not between & set(starts) or not between & set(ends):
            missing.append((", ".join(starts), ", ".join(ends)))
        nodes |= between
        hops |= {arrow for arrow in flow.arrows if between.issuperset(arrow)}
    edges = [e for e in schedule.edges if any((s.node, e.to.node) in hops for s in e.sources)]
    return nodes, edges, missing


def _idle_inputs(
    graph: Graph, phase: Phase, nodes: set[str], edges: list[Edge]
) -> Iterator[Problem]:
    """Yield problems for nodes that would fire without a required input."""
    fed, into = {e.to for e in edges}, {e.to: e for e in graph.edges}
    for name in sorted(nodes):
        for port, kind in graph.nodes[name].cls.ports.items():
            edge = into.get(PortRef(name, port))
            waits = isinstance(kind, In) and not kind.optional and kind.initial is None
            if isinstance(kind, In) and kind.may_idle:
                waits = not any(ref.node == name for ref in fed)
            if waits and edge is not None and PortRef(name, port) not in fed:
                what = f"warmup: '{name}' would fire without its input '{port}'"
                yield _phase_problem(
                    phase, what, f"add '{edge.source.node} -> {name}' to the phase's edges"
                )


def _idle_settings(phase: Phase, nodes: set[str]) -> Iterator[Problem]:
    for name in phase.settings.keys() - nodes:
        what = f"warmup: '{name}' does not fire in this phase"
        yield _phase_problem(
            phase, what, f"leave the setting '{name}.{next(iter(phase.settings[name]))}' out"
        )


def _rounds_of_phase(
    graph: Graph,
    phase: Phase,
    schedule: Schedule,
    steps_of: Mapping[str, int],
    problems: list[Problem],
) -> int | None:
    """Return the phase's length in rounds, env steps rounded up; None, and perhaps a problem, if it is unknown.

    Replicas that may be absent are not counted, because they join after the warm-up.
    """
    if phase.rounds is not None:
        return phase.rounds
    if not steps_of.keys() >= set(schedule.order):
        return None  # the node's own problem is reported, or it was not described
    replicas = {n: graph.nodes[n].least_replicas or graph.nodes[n].replicas for n in schedule.order}
    steps = sum(steps_of[n] * schedule.firings[n] * replicas[n] for n in schedule.order)
    if steps:
        return -(-(phase.steps or 0) // steps)
    what = "warmup: no node of this phase makes a known number of env steps"
    problems.append(_phase_problem(phase, what, "give its length as 'rounds'"))
    return None


def _phase_problem(phase: Phase, what: str, hint: str) -> Problem:
    return Problem(str(phase.location), what, hint)
