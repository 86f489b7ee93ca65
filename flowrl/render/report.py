"""The report on a checked graph, as text for a terminal and as the JSON of `flowrl check --json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import lags_behind_firings
from flowrl.checks.lossy_edges import fires_without_rate, may_lack_tokens
from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.checks.site_kinds import elastic_sites, inelastic_reason
from flowrl.core.array_pieces import COPY_AHEAD_BYTES, REST_BYTES
from flowrl.core.context import instance_key
from flowrl.core.errors import Problem, problem_lines
from flowrl.core.wording import count_text, size_text
from flowrl.graph.model import Edge, NodeSpec, paths_text
from flowrl.graph.site_layout import SiteLayout
from flowrl.render.placement_needs import PlacementNeeds


def check_text(
    checked: CheckedGraph, layout: SiteLayout | None = None, needs: PlacementNeeds | None = None
) -> str:
    """The verdict on a graph: its problems, or its schedule, edges, the sites of a layout, and determinism."""
    lines = problem_lines(checked.problems)
    lines += [f"warning: {w}" for w in checked.warnings]
    name = checked.graph.name
    if checked.problems:
        count = count_text(len(checked.problems), "problem")
        return "\n".join([*lines, "", f"{name}: {count}"])
    lines.append(
        f"{name}: sound. {len(checked.graph.nodes)} nodes, {len(checked.graph.edges)} edges."
    )
    lines += ["", "Schedule", *(f"  {line}" for line in schedule_lines(checked))]
    lines += ["", "Edges", *edge_lines(checked)]
    if layout is not None:
        lines += ["", "Sites", *site_lines(layout), *elastic_lines(checked, layout)]
    if needs is not None and needs.rows:
        lines += ["", "Needs", *needs.lines()]
    lines += ["", *determinism_lines(checked), *snapshot_lines(checked)]
    if checked.undescribed:
        lines += ["", *unchecked_lines(checked)]
    notes = [f"  {name}: {note}" for name, facts in checked.facts.items() for note in facts.notes]
    if notes:
        lines += ["", "Notes", *notes]
    return "\n".join(lines)


def unchecked_lines(checked: CheckedGraph) -> list[str]:
    """The checks that were left out because envs were not made, and the nodes without them."""
    return [
        "Not checked, because envs were not made: columns, numbers of rows, memory, the rounds of warm-ups given in",
        "steps, and what these nodes say of their determinism:",
        *(f"  {name}: {reason}" for name, reason in checked.undescribed.items()),
    ]


def schedule_lines(checked: CheckedGraph) -> list[str]:
    """The serial program, with a line for each of its schedules."""
    program = checked.program
    lines = []
    for number, warm in enumerate(program.warmup, 1):
        lines.append(f"warm-up {number}, {warm.rounds} rounds: {_firings(checked, warm.schedule)}")
    lines += unscheduled_phase_lines(checked)
    lines.append(f"every round: {_firings(checked, program.round)}")
    for paced in program.paced:
        lines.append(
            f"every {paced.every} firings of {paced.source.node}: {_firings(checked, paced.schedule)}"
        )
    return lines


def _firings(checked: CheckedGraph, schedule: Schedule) -> str:
    shown, often = [], fires_without_rate(schedule)
    for name in schedule.order:
        spec = checked.graph.nodes[name]
        times = schedule.firings[name]
        text = name if times == 1 else f"{name} x {times}"
        text = f"{name}, when it can" if name in often else text
        count = (
            f" (a group of {spec.replicas})"
            if spec.is_group
            else f" ({spec.written_replicas} replicas)"
        )
        shown.append(text + count if spec.replicas > 1 else text)
    return ", ".join(shown)


def edge_lines(checked: CheckedGraph) -> list[str]:
    """A line for each edge: from, to, type, rates, staleness."""
    rows = [
        (str(e).partition(" <->")[0] if e.kind == "link" else ", ".join(map(str, e.sources)), e)
        for e in checked.graph.edges
    ]
    width = max((len(a) for a, _ in rows), default=0)
    to_width = max((len(str(e.to)) for _, e in rows), default=0)
    arrows = {"link": "<->", "state": "=>", "stream": "->"}
    return [
        f"  {a:<{width}} {arrows[e.kind]:<3} {e.to!s:<{to_width}}  {edge_facts(checked, e)}"
        for a, e in rows
    ]


def edge_facts(checked: CheckedGraph, edge: Edge) -> str:
    """The type and rate of an edge, and how stale it may be."""
    port_type = checked.graph.nodes[edge.to.node].port(edge.to.port).type
    if edge.kind == "link":
        return f"{port_type}, calls"
    if lags_behind_firings(checked.program, edge):
        versions = f"{count_text(edge.lag, 'firing')} of {edge.source.node}"
        return f"{port_type}, lag {edge.lag} ({versions} older than the last)"
    if edge.kind == "state":
        return ", ".join([port_type, *edge.option_reports()])
    program = checked.program
    schedule = program.schedule_of(edge.to.node)
    tokens = schedule.firings.get(edge.to.node, 0) * schedule.rates.get(edge.to, 1)
    facts = [
        port_type,
        f"{count_text(tokens, 'token')} a round",
        f"room for {program.capacity.get(edge.to)}",
    ]
    if edge.to in program.initial:
        facts.append(f"{program.initial[edge.to]} initial")
    return ", ".join([*facts, *edge.option_reports()])


def site_lines(layout: SiteLayout) -> list[str]:
    """A line for each site: its kind and its instances."""
    width = max(map(len, layout.kinds), default=0)
    return [
        f"  {site:<{width}}  {kind}{f' on {host}' if (host := layout.host(site)) else ''}: "
        f"{', '.join(_instances_on(layout, site))}"
        for site, kind in layout.kinds.items()
    ]


def elastic_lines(checked: CheckedGraph, layout: SiteLayout) -> list[str]:
    """Which sites of a graph that leaves determinism can be lost while the run goes on, and why others cannot."""
    if not may_lack_tokens(checked.program.round):
        return []
    elastic = [site for site in layout.kinds if site in elastic_sites(checked, layout)]
    others = [s for s, kind in layout.kinds.items() if kind == "process" and s not in elastic]
    reasons = [f"  {s} is not elastic: {inelastic_reason(checked, layout, s)}" for s in others]
    lines = {
        "if one is lost, it is started again while the run goes on": ("elastic", elastic),
        "the run begins without those for which no host is there": ("later", list(layout.later)),
    }
    return [
        *(f"  {what}: {', '.join(sites)} ({why})" for why, (what, sites) in lines.items() if sites),
        *reasons,
    ]


def _instances_on(layout: SiteLayout, site: str) -> list[str]:
    return [instance_key(*instance) for instance in layout.instances_on(site)]


def unscheduled_phase_lines(checked: CheckedGraph) -> list[str]:
    """A line for each warm-up phase whose rounds are unknown, because its nodes were not described."""
    scheduled = [warm.phase for warm in checked.program.warmup]
    return [
        f"warm-up, {phase.steps} env steps: {paths_text(phase)}"
        for phase in checked.graph.phases
        if phase not in scheduled
    ]


def determinism_lines(checked: CheckedGraph) -> list[str]:
    """Whether the same seed gives the same bits, and if not, why."""
    if checked.deterministic and checked.undescribed:
        return ["Deterministic, as far as was checked."]
    if checked.deterministic:
        return ["Deterministic: the same seed gives the same bits, in every placement."]
    return ["Not deterministic:", *(f"  {reason}" for reason in checked.reasons)]


def snapshot_lines(checked: CheckedGraph) -> list[str]:
    """The memory that copies for a snapshot take, if the graph says how often it saves one, or if they are large."""
    ahead: dict[str, int] = {}  # bytes by node
    at_once: dict[str, int] = {}
    for name, facts in checked.facts.items():
        replicas, is_ahead = checked.graph.nodes[name].replicas, facts.live_state_bytes > REST_BYTES
        if is_ahead:
            ahead[name] = facts.live_state_bytes * replicas
        if facts.state_bytes > (own := facts.live_state_bytes if is_ahead else 0):
            at_once[name] = (facts.state_bytes - own) * replicas
    total, settings = sum([*ahead.values(), *at_once.values()]), checked.graph.snapshots
    if settings.is_off or not (total > REST_BYTES or (total and settings.is_regular)):
        return []
    if not ahead:
        return [
            f"A snapshot copies at most {_sizes_text(at_once)} between two rounds, and of rows only those that are new "
            "since the last one."
        ]
    more = f", and other data of at most {_sizes_text(at_once)}" if at_once else ""
    return [
        f"Ahead of a snapshot, at most {_sizes_text(ahead)} are copied, {size_text(COPY_AHEAD_BYTES)} at a time. "
        f"At its round, it copies at most {size_text(REST_BYTES)} of these, what has arrived meanwhile{more}."
    ]


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return f"{size_text(sum(sizes.values()))} ({', '.join(sizes)})"


def check_json(
    checked: CheckedGraph, layout: SiteLayout | None = None, needs: PlacementNeeds | None = None
) -> dict[str, object]:
    """The keys of `flowrl check --json`; `sites`, `elastic` and `needs` only with a placement."""
    sites = {} if layout is None else {s: _instances_on(layout, s) for s in layout.kinds}
    elastic = [] if layout is None else sorted(elastic_sites(checked, layout))
    return {
        "ok": checked.ok,
        "deterministic": checked.deterministic,
        "reasons": checked.reasons,
        "nodes": {name: _node_json(checked, spec) for name, spec in checked.graph.nodes.items()},
        "edges": [_edge_json(checked, edge) for edge in checked.graph.edges],
        "schedule": _schedule_json(checked.program),
        "problems": _problems_json(checked.problems),
        "warnings": _problems_json(checked.warnings),
        "notes": {name: list(facts.notes) for name, facts in checked.facts.items() if facts.notes},
        "envs_checked": not checked.undescribed,
        "not_checked": checked.undescribed,
        "sites": sites,
        "elastic": elastic,
        "needs": {} if needs is None else needs.as_dict(),
    }


def _node_json(checked: CheckedGraph, spec: NodeSpec) -> dict[str, object]:
    firings = checked.program.schedule_of(spec.name).firings.get(spec.name, 0)
    least = {"least_replicas": spec.least_replicas} if spec.least_replicas else {}
    return {"type": spec.type, "replicas": spec.replicas, **least, "firings": firings}


def _edge_json(checked: CheckedGraph, edge: Edge) -> dict[str, object]:
    """An edge with all its options. The capacity of a stream is the one that holds, also where none was written."""
    capacity = checked.program.capacity.get(edge.to)
    return {
        "kind": edge.kind,
        "from": [str(source) for source in edge.sources],
        "to": str(edge.to),
        "type": checked.graph.nodes[edge.to.node].port(edge.to.port).type,
        **edge.options(),
        **({"capacity": capacity} if edge.kind == "stream" else {}),
    }


def _schedule_json(program: SerialProgram) -> dict[str, object]:
    return {
        "warmup": [{"rounds": w.rounds, "firings": w.schedule.firings} for w in program.warmup],
        "round": program.round.firings,
        "order": program.round.order,
        "paced": [
            {"source": str(p.source), "every": p.every, "firings": p.schedule.firings}
            for p in program.paced
        ],
    }


def unreadable_graph_json(problems: Iterable[Problem]) -> dict[str, object]:
    """The keys of `flowrl check --json` for a graph that cannot be loaded."""
    return {
        "ok": False,
        "deterministic": False,
        "reasons": [],
        "nodes": {},
        "edges": [],
        "schedule": {},
        "problems": _problems_json(problems),
        "warnings": [],
        "notes": {},
        "envs_checked": False,
        "not_checked": {},
        "sites": {},
        "elastic": [],
        "needs": {},
    }


def _problems_json(problems: Iterable[Problem]) -> list[dict[str, str]]:
    return [{"where": p.where, "what": p.what, "hint": p.hint} for p in problems]
