"""Finds the ports that the edge statements of a graph mean.

An edge is identified by the input that it ends in. An edge of a later file into the same input replaces that of an
earlier file; null removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from flowrl.core.errors import SHOWN_PROBLEMS, Problem, Problems, closest_word, spelling_hint
from flowrl.core.ports import ANY, In, Link, Out, Port, Service, StateIn, StateOut
from flowrl.graph.edge_statements import EdgeEnd, EdgeStatement
from flowrl.graph.model import EDGE_OPTIONS, Edge, NodeSpec, PortRef
from flowrl.graph.yaml_text import YamlValue

PortPair = tuple[PortRef, PortRef]  # an output and the input that it feeds


class EdgeReader:
    """Turns statements into edges between ports, and collects problems."""

    def __init__(
        self,
        nodes: Mapping[str, NodeSpec],
        part_ports: Mapping[str, Mapping[str, PortRef]],
        broken_nodes: set[str],
        removed_nodes: Mapping[str, frozenset[str]],
        problems: Problems,
    ) -> None:
        """`part_ports` are the ports that part-graphs show. `broken_nodes` have a problem that was reported before.
        `removed_nodes` were removed by null, each with the files whose edges to it go, too.
        """
        self.nodes, self.part_ports = nodes, part_ports
        self.broken_nodes, self.removed_nodes = broken_nodes, removed_nodes
        self.problems = problems
        self.incomplete: set[str] = set()  # nodes that may lack an edge because it has a problem

    def read_edges(self, statements: Iterable[EdgeStatement]) -> dict[PortRef, Edge]:
        """The edge into each connected input."""
        found: dict[PortRef, Edge] = {}
        for statement in statements:
            if self.is_removed_with_node(statement):
                continue
            if statement.removes:
                self.remove_edges(statement, found)
            elif edge := self.read_edge(statement):
                self.add_edge(edge, found)
            else:
                ends = (*statement.sources, statement.to)
                self.incomplete |= {n for end in ends for n in self.node_names(end.node)}
        return found

    def is_removed_with_node(self, statement: EdgeStatement) -> bool:
        """Whether an edge is removed because a later file removed one of its nodes."""
        return any(
            end.node not in self.nodes
            and statement.location.file in self.removed_nodes.get(end.node, ())
            for end in (*statement.sources, statement.to)
        )

    def node_names(self, name: str) -> set[str]:
        """The node of this name, or the nodes whose ports the part-graph of this name shows."""
        if name not in self.part_ports:
            return {name}
        return {ref.node for ref in self.part_ports[name].values()}

    def add_edge(self, edge: Edge, found: dict[PortRef, Edge]) -> None:
        before = found.pop(edge.to, None)
        if before is not None and before.location.file != edge.location.file:
            edge = replace(edge, replaced_sources=before.sources)
        elif before is not None:
            names = ", ".join(map(str, (*before.sources, *edge.sources)))
            what = f"edges: the input {edge.to} is fed twice (first at {before.location})"
            hint = f"list the sources together: '{names} -> {edge.to}'"
            many = getattr(self.nodes[edge.to.node].port(edge.to.port), "many", False)
            if edge.kind != "stream":
                hint = f"list them together: '{names} <-> {edge.to}'" if many else "leave one out"
            self.problems.add(edge.location, what, hint)
            self.incomplete |= {source.node for source in before.sources}
        found[edge.to] = edge

    def remove_edges(self, statement: EdgeStatement, found: dict[PortRef, Edge]) -> None:
        ends = {statement.to, *(statement.sources if statement.arrow == "<->" else ())}
        inputs = {ref for end in ends if self.is_known(end) for ref, _, _ in self.ports_at(end)}
        named = {n for end in (*statement.sources, statement.to) for n in self.node_names(end.node)}
        gone = [
            ref
            for ref, edge in found.items()
            if ref in inputs
            and (not statement.sources or {ref.node, *(s.node for s in edge.sources)} <= named)
        ]
        for ref in gone:
            del found[ref]
        if not gone and not ends & {EdgeEnd(n) for n in self.broken_nodes}:
            text = statement if statement.sources else f"into '{statement.to}'"
            what = f"edges: null removes the edge {text}, and there is none"
            inputs_fed = [str(ref) for ref in found]
            self.problems.add(
                statement.location, what, spelling_hint(str(statement.to), inputs_fed)
            )

    def read_edge(self, statement: EdgeStatement) -> Edge | None:
        ends = (*statement.sources, statement.to)
        for end in ends:
            if not self.is_known(end) and end.node not in self.broken_nodes:
                self.add_unknown_node(statement, end.node)
        if not all(map(self.is_known, ends)):
            of_options = (
                written_option_problem(str(statement.to), n, i)
                for n, i in statement.options.items()
            )
            self.problems.extend(problem for problem in of_options if problem)
            return None
        pairs = [self.resolve_pair(statement, source) for source in statement.sources]
        found = [pair for pair in pairs if pair is not None]
        if len(found) < len(pairs):
            return None
        targets = sorted({str(to) for _, to in found})
        if len(targets) > 1:
            what = f"edges: the sources lead to different inputs: {', '.join(targets)}"
            self.problems.add(statement.location, what, "name the port")
            return None
        return self.make_edge(statement, tuple(source for source, _ in found), found[0][1])

    def add_unknown_node(self, statement: EdgeStatement, name: str) -> None:
        what = f"edges: unknown node '{name}'"
        if len(self.problems) >= SHOWN_PROBLEMS:  # nobody reads its hint, which takes a search
            self.problems.add(statement.location, what)
            return
        names = {*self.nodes, *self.broken_nodes, *self.part_ports}
        self.problems.add(statement.location, what, spelling_hint(name, names))
        self.incomplete |= self.node_names(closest_word(name, names) or "")

    def is_known(self, end: EdgeEnd) -> bool:
        if end.node in self.part_ports:
            return all(ref.node in self.nodes for ref in self.part_ports[end.node].values())
        return end.node in self.nodes

    def resolve_pair(self, statement: EdgeStatement, source: EdgeEnd) -> PortPair | None:
        """The one pair of ports that fits. If there is not exactly one, report the candidates and return None."""
        to, location = statement.to, statement.location
        for end in (source, to):
            if not self.ports_at(end):
                names = [name for _, name, _ in self.ports_at(EdgeEnd(end.node))]
                what = f"edges: '{end.node}' has no port '{end.port}'"
                if not end.port:
                    what = f"edges: '{end.node}' has no ports"
                self.problems.add(location, what, spelling_hint(end.port, names))
                return None
        if statement.arrow == "<->":
            found = self.fitting_pairs(source, to, link=True)
            found += self.fitting_pairs(to, source, link=True)
        else:
            found = self.fitting_pairs(source, to, link=False)
        if len(found) == 1:
            return found[0]
        if found:
            options = " or ".join(f"'{a} {statement.arrow} {b}'" for a, b in found)
            what = f"edges: '{source} {statement.arrow} {to}' is ambiguous"
            self.problems.add(location, what, f"write {options}")
        else:
            what = f"edges: no output of '{source}' fits an input of '{to}'"
            if statement.arrow == "<->":
                what = f"edges: '{source}' and '{to}' have no link and service that fit"
            self.problems.add(location, what, self.candidates_text(source, to, statement.arrow))
        return None

    def ports_at(self, end: EdgeEnd) -> list[tuple[PortRef, str, Port]]:
        """The ports that an end may mean, by their names at that end. A part-graph has those that it shows."""
        inner = self.part_ports.get(end.node)
        if inner is None:
            ports = self.nodes[end.node].cls.ports
            found = [(PortRef(end.node, name), name, port) for name, port in ports.items()]
        else:
            found = [
                (ref, name, self.nodes[ref.node].port(ref.port)) for name, ref in inner.items()
            ]
        return [f for f in found if end.port in ("", f[1])]

    def fitting_pairs(self, source: EdgeEnd, to: EdgeEnd, link: bool) -> list[PortPair]:
        """Pairs of ports of one type; required ports come first.

        Optional inputs of streams and states fit by name only, because `a -> b` means the required ones.
        """
        found = [
            (o, i, out.optional or (link and inp.optional))
            for o, _, out in self.ports_at(source)
            if isinstance(out, Service if link else Out | StateOut)
            for i, _, inp in self.ports_at(to)
            if isinstance(inp, Link if link else In | StateIn)
            and (to.port or link or not inp.optional)
            and _compatible(out, inp)
        ]
        required = [(o, i) for o, i, optional in found if not optional]
        return required or [(o, i) for o, i, _ in found]

    def candidates_text(self, source: EdgeEnd, to: EdgeEnd, arrow: str) -> str:
        def listed(end: EdgeEnd, kinds: Any) -> str:
            ports = self.ports_at(EdgeEnd(end.node))
            shown = [
                f"{n} ({p.type}{', optional' if p.optional else ''})"
                for _, n, p in ports
                if isinstance(p, kinds)
            ]
            return ", ".join(shown) or "none"

        if arrow == "<->":
            return (
                f"services and links of '{source.node}': {listed(source, Service | Link)}; "
                f"of '{to.node}': {listed(to, Service | Link)}"
            )
        return (
            f"outputs of '{source.node}': {listed(source, Out | StateOut)}; "
            f"inputs of '{to.node}': {listed(to, In | StateIn)}; optional inputs must be named"
        )

    def make_edge(
        self, statement: EdgeStatement, sources: tuple[PortRef, ...], to: PortRef
    ) -> Edge | None:
        kind, location = self.nodes[to.node].port(to.port).kind, statement.location
        if len(set(sources)) < len(sources):
            self.problems.add(
                location, f"edges: '{statement}' names a source twice", "leave one out"
            )
            return None
        many = getattr(self.nodes[to.node].port(to.port), "many", False)
        if kind == "link" and len(sources) > 1 and not many:
            what = f"edges: the link {to} has one service"
            self.problems.add(location, what, "write one node before '<->'")
            return None
        if kind == "state" and len(sources) > 1:
            what = f"edges: the state input {to} has one source"
            self.problems.add(location, what, "write one node before '->'")
            return None
        edge = Edge(kind, sources, to, location)
        for name, item in statement.options.items():
            edge = self.set_option(edge, name, item)
        return edge

    def set_option(self, edge: Edge, name: str, item: YamlValue) -> Edge:
        """The edge with one option set, or the same edge and a problem."""
        problem = option_problem(edge, name, item)
        if problem is None:
            return edge.with_option(name, item.value)
        self.problems.append(problem)
        return edge


def option_problem(edge: Edge, name: str, item: YamlValue) -> Problem | None:
    """The problem of an option of this edge, if it has one."""
    declared = EDGE_OPTIONS.get(name)
    if declared is not None and edge.kind not in declared.kinds:
        fitting = ", ".join(n for n, o in EDGE_OPTIONS.items() if edge.kind in o.kinds)
        kinds = " and ".join(declared.kinds)
        what = f"edges: '{name}' is an option of {kinds} edges; {edge.to} is a {edge.kind}"
        hint = f"options of a {edge.kind} edge: {fitting}" if fitting else "a link has no options"
        return Problem(str(item.entry_location), what, hint)
    return written_option_problem(str(edge.to), name, item)


def written_option_problem(to: str, name: str, item: YamlValue) -> Problem | None:
    """The problem of an option as it is written, whatever the kind of the edge."""
    if name not in EDGE_OPTIONS:
        hint = spelling_hint(name, EDGE_OPTIONS)
        return Problem(str(item.entry_location), f"edges: unknown option '{name}'", hint)
    if not EDGE_OPTIONS[name].accepts(item.value):
        what = f"edges: {to}: {name} is {item.plain()!r}"
        return Problem(str(item.location), what, f"expected {EDGE_OPTIONS[name].expected}")
    return None


def _compatible(out: Port, inp: Port) -> bool:
    if out.kind != inp.kind:
        return False
    return out.type == inp.type or (out.kind == "stream" and ANY in (out.type, inp.type))
