"""The content of a picture of a graph, for all formats: boxes, arrows, sites, the warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.channels.transport import TRANSPORTS
from flowrl.checks.check import CheckedGraph
from flowrl.checks.ordering import is_feedback
from flowrl.checks.serial_program import Schedule
from flowrl.core.errors import shortened_repr
from flowrl.core.ports import Input
from flowrl.core.wording import count_text
from flowrl.core.written_config import written_value
from flowrl.graph.model import Edge, Graph, NodeSpec, PortRef, paths_text
from flowrl.graph.placement import Placement
from flowrl.graph.places import Needs
from flowrl.graph.replica_pairs import replica_pairs_of
from flowrl.graph.site_layout import SiteLayout, make_layout
from flowrl.graph.site_shares import SiteShare, shares_by_site


@dataclass(frozen=True, slots=True)
class Box:
    """A node, with its connected ports."""

    name: str
    type: str
    look: str  # collector, learner, evaluator, service or node; determines its colour
    replicas: int | str  # their number, or `2..16`
    is_group: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def times(self) -> str:
        """The number of replicas, if there are several, and whether they are a group."""
        group = "group " if self.is_group else ""
        return f"{group}×{self.replicas}" if self.replicas != 1 else ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge from one source."""

    kind: str  # stream, state or link
    source: PortRef
    to: PortRef
    back: bool  # it leads to a node that fires before its source
    type: str
    facts: str  # rates, staleness
    transport: str = ""  # between the sites of its ends

    @property
    def label_lines(self) -> tuple[str, ...]:
        """The text of the arrow: what it carries, and what else there is to say of it."""
        return (self.type, *(words for words in (self.facts, self.transport) if words))

    @property
    def label(self) -> str:
        """The whole text of the arrow, on one line."""
        return ", ".join(self.label_lines)


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph as it is drawn."""

    name: str
    about: str
    boxes: Mapping[str, Box]  # in the order of the serial program, services before their clients
    arrows: tuple[Arrow, ...]
    sites: Mapping[str, tuple[str, ...]]  # empty without a placement
    warmup: tuple[str, ...]


def make_picture(checked: CheckedGraph, placement: Placement | None = None) -> Picture:
    """The picture of a graph, which need not be sound."""
    graph = checked.graph
    known = [e for e in graph.edges if all(s.node in graph.nodes for s in (*e.sources, e.to))]
    order = _order(checked, known)
    layout = None if placement is None else make_layout(graph, placement)
    return Picture(
        graph.name,
        graph.about,
        {name: _box(graph.nodes[name], known) for name in order},
        tuple(_arrow(checked, e, s, order, layout) for e in known for s in e.sources),
        {} if layout is None or placement is None else _sites(graph, placement, layout),
        tuple(_warmup(checked)),
    )


def _sites(graph: Graph, placement: Placement, layout: SiteLayout) -> dict[str, tuple[str, ...]]:
    """The nodes of each site, by its text. Nodes whose replicas are at several places have the texts of all of them."""
    texts: dict[str, str] = {}
    nodes: dict[str, list[str]] = {name: [] for name in graph.nodes}  # the sites of each
    for site, shares in shares_by_site(graph, placement).items():
        texts[site] = _site(site, shares, layout)
        for node in dict.fromkeys(node for share in shares for node, _ in share.instances):
            nodes[node].append(site)
    found: dict[str, list[str]] = {}
    in_order = sorted(graph.nodes, key=lambda name: list(texts).index(nodes[name][0]))
    for name in in_order:
        found.setdefault(", ".join(texts[site] for site in nodes[name]), []).append(name)
    return {text: tuple(names) for text, names in found.items()}


def _site(site: str, shares: list[SiteShare], layout: SiteLayout) -> str:
    """A site's name, with the number of sites if replicas have sites of their own, and what each of them needs."""
    sites = dict.fromkeys(layout.site_of[i] for share in shares for i in share.instances)
    needs = {str(layout.needs.get(name, Needs())) for name in sites}
    words = [" or ".join(sorted(needs - {""}))]
    words.append("each on another host" if any(share.spread for share in shares) else "")
    asked = ", ".join(filter(None, words))
    return "".join(
        (site, f" ×{len(sites)}" if len(sites) > 1 else "", f" ({asked})" if asked else "")
    )


def _transport(graph: Graph, edge: Edge, source: PortRef, layout: SiteLayout) -> str:
    """The transports between the sites of both ends, or nothing if they are one site."""
    number = edge.sources.index(source)
    found = {
        layout.reach(layout.site_of[source.node, pair[1]], layout.site_of[edge.to.node, pair[2]])
        for pair in replica_pairs_of(graph, edge)
        if pair[0] == number
    }
    return ", ".join(t.description for t in TRANSPORTS.values() if t.reach in found)


def _order(checked: CheckedGraph, edges: list[Edge]) -> dict[str, int]:
    """The nodes in the order in which they fire. A service comes right before its client."""
    program = checked.program
    fired = [*program.round.order, *(n for p in program.paced for n in p.schedule.order)]
    calls: dict[str, list[str]] = {}
    for edge in edges:
        if edge.kind == "link":
            calls.setdefault(edge.to.node, []).extend(s.node for s in edge.sources)
    order: dict[str, int] = {}

    def place(name: str, above: frozenset[str]) -> None:
        for service in calls.get(name, ()):
            if service not in above:
                place(service, above | {service})
        order.setdefault(name, len(order))

    for name in [*fired, *checked.graph.nodes]:
        place(name, frozenset({name}))
    return order


def _box(spec: NodeSpec, edges: list[Edge]) -> Box:
    used = {ref.port for e in edges for ref in (*e.sources, e.to) if ref.node == spec.name}
    ports = {n: p for n, p in spec.cls.ports.items() if n in used or not p.optional}
    served = any(e.kind == "link" and spec.name in {s.node for s in e.sources} for e in edges)
    return Box(
        spec.name,
        spec.type,
        spec.cls.role or ("service" if served else "node"),
        spec.written_replicas,
        spec.is_group,
        tuple(n for n, p in ports.items() if isinstance(p, Input)),
        tuple(n for n, p in ports.items() if not isinstance(p, Input)),
    )


def _arrow(
    checked: CheckedGraph,
    edge: Edge,
    source: PortRef,
    order: Mapping[str, int],
    layout: SiteLayout | None,
) -> Arrow:
    late = edge.kind != "link" and order[source.node] >= order[edge.to.node]
    facts = ", ".join(_facts(checked, edge))
    type_ = checked.graph.nodes[edge.to.node].port(edge.to.port).type
    transport = _transport(checked.graph, edge, source, layout) if layout else ""
    return Arrow(edge.kind, source, edge.to, late, type_, facts, transport)


def _facts(checked: CheckedGraph, edge: Edge) -> list[str]:
    program = checked.program
    if edge.kind != "stream":
        return edge.option_labels()
    schedule = program.schedule_of(edge.to.node)
    tokens = schedule.firings.get(edge.to.node, 0) * schedule.rates.get(edge.to, 1)
    found = [f"{tokens} a round"] if tokens else []
    if is_feedback(checked.graph, edge):
        found.append(f"{program.initial.get(edge.to, tokens)} initial")
    return found + edge.option_labels()


def _warmup(checked: CheckedGraph) -> list[str]:
    """A line for each phase of the warm-up."""
    lines = []
    for warm in checked.program.warmup:
        line = f"{count_text(warm.rounds, 'round')}: {_firings(warm.schedule)}"
        if warm.phase.steps is not None:
            line += f" ({warm.phase.steps} env steps)"
        settings = [f"{k} = {_value(v)}" for k, v in warm.phase.settings_by_path().items()]
        lines.append("; ".join([line, *settings]))
    scheduled = [warm.phase for warm in checked.program.warmup]
    unscheduled = [phase for phase in checked.graph.phases if phase not in scheduled]
    return lines + [f"{phase.steps} env steps: {paths_text(phase)}" for phase in unscheduled]


def _firings(schedule: Schedule) -> str:
    return ", ".join(
        n if schedule.firings[n] == 1 else f"{n} ×{schedule.firings[n]}" for n in schedule.order
    )


def _value(value: object) -> str:
    """A setting in short form. A part is shown by its type."""
    plain = written_value(value)
    return (
        str(plain["type"]) if isinstance(plain, dict) and "type" in plain else shortened_repr(plain)
    )
