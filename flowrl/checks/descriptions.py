"""Collects the facts that node types state about their nodes, before the nodes are made."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from flowrl.checks.describe_call import describe, makes_env
from flowrl.checks.ordering import find_cycle, is_feedback, topological_order
from flowrl.core.batch import Schema
from flowrl.core.config import Config
from flowrl.core.errors import Problem
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.ports import In, Link
from flowrl.graph.model import Edge, Graph, PortRef, client_roles
from flowrl.graph.yaml_text import SourceLocation

# Whether nodes make envs to describe themselves: always, only where the packages are installed, or never.
# With `play`, they are made, and nodes may also play in them to look for what is worth a note.
EnvUse = Literal["make", "play", "make_if_installed", "skip"]


@dataclass(slots=True)
class NodeDescriptions:
    """The facts of all nodes that could be described, and the columns and rows on their streams."""

    facts: dict[str, Facts] = field(default_factory=dict)
    schemas: dict[PortRef, Schema | None] = field(default_factory=dict)  # at each stream input
    rows: dict[PortRef, int] = field(default_factory=dict)  # of a token at each stream input
    undescribed: dict[str, str] = field(default_factory=dict)  # nodes without facts, and why


class NodeDescriber:
    """Calls `describe` of the nodes in the order in which data flows, and collects problems."""

    def __init__(
        self,
        graph: Graph,
        problems: list[Problem],
        envs: EnvUse = "make",
        in_fork: bool = False,
        elsewhere: Collection[str] = (),
    ) -> None:
        """With `in_fork`, each env is made in a fork of this process, which it may end or block.

        The nodes that run `elsewhere` may use devices that this machine lacks.
        """
        self.graph, self.problems, self.envs, self._in_fork = graph, problems, envs, in_fork
        self._elsewhere = elsewhere
        self.descriptions = NodeDescriptions()
        self._edges_into: dict[str, list[Edge]] = {}
        self._connected_outputs: set[PortRef] = set()
        self._client_roles = client_roles(graph)
        for edge in graph.edges:
            self._edges_into.setdefault(edge.to.node, []).append(edge)
            self._connected_outputs.update(edge.sources)

    def describe_all(self) -> NodeDescriptions:
        for name in self._description_order():
            facts = self.describe_node(name, self.graph.nodes[name].config)
            if facts is not None:
                self.descriptions.facts[name] = facts
        for edge in self.graph.edges:
            source = self.descriptions.facts.get(edge.source.node)
            if edge.kind == "stream" and source is not None:
                self.descriptions.schemas.setdefault(edge.to, source.outs.get(edge.source.port))
                self._count_feedback_rows(edge)
        return self.descriptions

    def _description_order(self) -> list[str]:
        """Return the nodes, services before their clients and producers before their consumers."""
        before = [e for e in self.graph.edges if e.kind != "state"]
        before = [e for e in before if e.kind == "link" or not is_feedback(self.graph, e)]
        order = topological_order(self.graph.nodes, before)
        left = self.graph.nodes.keys() - set(order)
        if left:
            cycle, edge = find_cycle(left, before)
            if {e.kind for e in before if {e.source.node, e.to.node} <= set(cycle)} > {"link"}:
                what = f"the streams and links form a cycle: {' -> '.join(cycle)}"
                hint = "a service cannot depend on what its client gives; remove one of the edges"
                self.problems.append(Problem(str(edge.location), what, hint))
        return order

    def describe_node(self, name: str, config: Config) -> Facts | None:
        """Return the facts of a node with this config; None if it or a node on which it depends cannot be described."""
        spec, edges = self.graph.nodes[name], self._edges_into.get(name, [])
        if reason := self._reason_to_skip(config, edges):
            self.descriptions.undescribed[name] = reason
            return None
        inputs, links = self._input_columns(edges), self._link_facts(edges)
        connected = frozenset(
            p for p in spec.cls.ports if PortRef(name, p) in self._connected_outputs
        )
        fed = {edge.to.port for edge in edges}
        for port, kind in spec.cls.ports.items():
            is_needed = isinstance(kind, In | Link) and (port in fed or not kind.optional)
            if is_needed and port not in (inputs if isinstance(kind, In) else links):
                return None  # unconnected ports and neighbours without facts are reported by themselves
        known = Surroundings(
            {p: inputs[p] for p in spec.cls.ports if p in inputs},
            links,
            connected,
            self._client_roles.get(name, frozenset()),
            frozenset(e.to.port for e in edges if self._is_live(e)),
            wants_notes=self.envs == "play",
            group_size=spec.replicas if spec.is_group else 1,
            rows={
                p: self.descriptions.rows[r]
                for p in inputs
                if (r := PortRef(name, p)) in self.descriptions.rows
            },
            runs_here=name not in self._elsewhere,
        )
        found = describe(spec, config, known, self._in_fork)
        if found.missing_package and self.envs == "make_if_installed":
            self.descriptions.undescribed[name] = found.missing_package
        elif found.problem is not None and found.location is not None:
            where = self.graph.last_written([found.location, *self.locations_before(name)])
            self.problems.append(replace(found.problem, where=str(where)))
        elif found.problem is not None:
            self.problems.append(found.problem)
        return found.facts

    def facts_with(self, name: str, config: Config) -> Facts | None:
        """Return the facts that a node would have with another config, without reporting problems of that."""
        known = len(self.problems)
        facts = self.describe_node(name, config)
        del self.problems[known:]
        return facts

    def _is_live(self, edge: Edge) -> bool:
        """Return whether the tokens of an edge come from a collector or an evaluator."""
        if edge.kind != "stream" or is_feedback(self.graph, edge):
            return False
        sources = {source.node for source in edge.sources}
        if any(self.graph.nodes[n].cls.role in ("collector", "evaluator") for n in sources):
            return True
        return any(self._is_live(e) for n in sources for e in self._edges_into.get(n, []))

    def locations_before(self, name: str) -> Iterator[SourceLocation]:
        """Yield where a node was written, and then all nodes on which it depends, the nearest first."""
        names = [name]
        for one in names:
            yield from self.graph.nodes[one].locations()
            edges = [e for e in self._edges_into.get(one, []) if e.kind != "state"]
            sources = dict.fromkeys(s.node for edge in edges for s in edge.sources)
            names += [source for source in sources if source not in names]

    def _reason_to_skip(self, config: Config, edges: list[Edge]) -> str:
        """Return why a node cannot be described without making an env; empty if it can."""
        if self.envs == "skip" and makes_env(config):
            return "its env was not made"
        for edge in edges:
            if edge.kind == "state" or is_feedback(self.graph, edge):
                continue
            for source in edge.sources:
                if source.node in self.descriptions.undescribed:
                    return f"it depends on {source.node}"
        return ""

    def _input_columns(self, edges: list[Edge]) -> dict[str, Schema | None]:
        """Return the columns at each connected stream input whose sources are described."""
        found: dict[str, Schema | None] = {}
        for edge in edges:
            if edge.kind != "stream":
                continue
            if is_feedback(self.graph, edge):
                found[edge.to.port] = None  # its source is described later
            elif all(s.node in self.descriptions.facts for s in edge.sources):
                found[edge.to.port] = self._input_schema(edge)
                self._count_rows(edge)
        return found

    def _input_schema(self, edge: Edge) -> Schema | None:
        given = [self.descriptions.facts[s.node].outs.get(s.port) for s in edge.sources]
        if edge.to not in self.descriptions.schemas:
            self.descriptions.schemas[edge.to] = given[0]
            for source, other in zip(edge.sources[1:], given[1:], strict=True):
                if other != given[0]:
                    self.problems.append(_differing_columns(edge, source, given[0], other))
        return given[0]

    def _count_rows(self, edge: Edge) -> None:
        """Store the rows of a token at an input of a replica.

        A fan-in of replicas concatenates their rows, and the replicas of a group share them.
        """
        total, to = 0, self.graph.nodes[edge.to.node]
        for source in edge.sources:
            rows = self.descriptions.facts[source.node].rows.get(source.port)
            if rows is None:
                rows = self._inherited_rows(source.node)
            if rows is None:
                return
            replicas = self.graph.nodes[source.node].replicas
            if to.is_group and replicas != to.replicas:
                if rows % to.replicas:
                    return  # the parts differ
                total += rows // to.replicas * replicas
            else:
                fan_in = to.replicas == 1 and edge.merge != "any"
                total += rows * (replicas if fan_in else 1)
        self.descriptions.rows[edge.to] = total

    def _count_feedback_rows(self, edge: Edge) -> None:
        """Store the rows of a token that closes a loop, if its sources say how many these are."""
        facts = self.descriptions.facts
        stated = (s.node in facts and s.port in facts[s.node].rows for s in edge.sources)
        if is_feedback(self.graph, edge) and all(stated):
            self._count_rows(edge)

    def _inherited_rows(self, name: str) -> int | None:
        """Return the rows of a node that states none, such as a reward model: those of its first input."""
        ports = self.graph.nodes[name].cls.ports
        first = next((p for p, kind in ports.items() if isinstance(kind, In)), "")
        return self.descriptions.rows.get(PortRef(name, first))

    def _link_facts(self, edges: list[Edge]) -> dict[str, object]:
        facts = self.descriptions.facts
        found: dict[str, object] = {}
        for edge in edges:
            if edge.kind == "link" and all(s.node in facts for s in edge.sources):
                services = [facts[s.node].service for s in edge.sources]
                port = self.graph.nodes[edge.to.node].port(edge.to.port)
                found[edge.to.port] = services if getattr(port, "many", False) else services[0]
        return found


def _differing_columns(
    edge: Edge, source: PortRef, first: Schema | None, other: Schema | None
) -> Problem:
    what = (
        f"{edge}: its sources give different columns: {edge.source} gives {columns_text(first)}; "
        f"{source} gives {columns_text(other)}"
    )
    return Problem(str(edge.location), what, "put a node in between that makes them alike")


def columns_text(schema: Schema | None) -> str:
    """Format columns for messages."""
    if schema is None:
        return "no table"
    return ", ".join(f"{name} {column}" for name, column in schema.items()) or "no columns"
