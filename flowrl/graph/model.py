"""The graph as data: what a graph file means once it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flowrl.core.config import Config
from flowrl.core.node import Node
from flowrl.core.ports import AUTO, In, Out, Port, Rate
from flowrl.graph.yaml_reader import SourceLocation, YamlValue

NodeType = type[Node]
OnFailure = Literal["stop", "restart", "ignore"]


@dataclass(frozen=True, slots=True)
class PortRef:
    """A port of a node, written `node.port`."""

    node: str
    port: str

    def __str__(self) -> str:
        return f"{self.node}.{self.port}"


@dataclass(slots=True)
class NodeSpec:
    """A node of the graph: its type, parameters, and how many there are of it."""

    name: str
    type: str
    cls: NodeType
    config: Config
    written: YamlValue  # the parameters as they were written, for their places
    replicas: int = 1
    on_failure: OnFailure = "stop"
    shared: Mapping[str, YamlValue] = field(
        default_factory=dict
    )  # the sections at the top that it may take

    @property
    def fires(self) -> bool:
        """Whether it has firings of its own; others are only called."""
        return self.cls.fire is not Node.fire

    @property
    def fires_on_any(self) -> bool:
        """Whether it fires with what there is, and gives as much as it likes: no rate of it balances."""
        return self.cls.fires_on_any(self.config)

    def port(self, name: str) -> Port:
        """A port by its name."""
        return self.cls.ports[name]

    def rate(self, name: str) -> int | None:
        """The rate of a stream port; None for `auto`."""
        param = self.rate_param(name)
        if param is not None:
            return int(getattr(self.config, param))
        rate = self._written_rate(name)
        return rate if isinstance(rate, int) else None

    def rate_param(self, name: str) -> str | None:
        """The parameter that a stream port's rate is."""
        rate = self._written_rate(name)
        return rate if isinstance(rate, str) and rate != AUTO else None

    def _written_rate(self, name: str) -> Rate:
        port = self.cls.ports[name]
        assert isinstance(port, In | Out)
        return port.rate

    def location(self, key: str = "") -> SourceLocation:
        """Where a parameter (`env.id`: of a part) was written, or else the node."""
        for fields in (self.written.fields, self.shared):
            if found := _along(fields, key):
                return found.entry_location
        return self.written.entry_location


def _along(fields: Mapping[str, YamlValue], key: str) -> YamlValue | None:
    """As far as the words of `env.id` lead."""
    found = None
    for word in key.split("."):
        if word not in fields:
            break
        found = fields[word]
        fields = found.fields
    return found


@dataclass(frozen=True, slots=True)
class Edge:
    """What feeds one input: a stream, a state or a link, with its options."""

    kind: Literal["stream", "state", "link"]
    sources: tuple[PortRef, ...]
    to: PortRef
    location: SourceLocation
    lag: int = 0  # state: rounds of staleness
    every: int | None = None  # state: the firings of the source between two firings of a paced node
    latest: bool = False  # state: the newest version, whatever it is
    max_staleness: int | None = None  # rounds
    merge: Literal["order", "any"] = "order"  # stream: several sources
    capacity: int | None = None  # stream: tokens
    when_full: Literal["wait", "drop_oldest"] = "wait"

    @property
    def source(self) -> PortRef:
        """The only source."""
        return self.sources[0]

    def with_option(self, name: str, value: Any) -> Edge:
        """The same edge with one option set."""
        return replace(self, **{name: value})

    def __str__(self) -> str:
        arrow = "<->" if self.kind == "link" else "->"
        return f"{', '.join(map(str, self.sources))} {arrow} {self.to}"

    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as they are written."""
        names = ("lag", "every", "latest", "max_staleness", "merge", "capacity", "when_full")
        defaults = Edge.__dataclass_fields__
        return {n: v for n in names if (v := getattr(self, n)) != defaults[n].default}


@dataclass(frozen=True, slots=True)
class Phase:
    """A warm-up phase: the paths that are active, settings that differ, and its length."""

    paths: tuple[
        tuple[tuple[str, ...], tuple[str, ...]], ...
    ]  # from nodes, to nodes (a part-graph is several)
    location: SourceLocation
    steps: int | None = None  # env steps, rounded up to whole rounds
    rounds: int | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # node -> parameter -> value


def paths_text(phase: Phase) -> str:
    """The active paths of a phase, as they are written: `collector -> buffer, …`."""
    return ", ".join(f"{', '.join(a)} -> {', '.join(b)}" for a, b in phase.paths)


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a run ends at the latest."""

    steps: int | None = None
    train_iters: int | None = None
    rounds: int | None = None
    time_s: float | None = None

    def overridden_by(self, **given: Any) -> Limits:
        """These limits, with those that are given in their place."""
        known = {n: getattr(self, n) for n in Limits.__slots__}
        return Limits(**{**known, **{k: v for k, v in given.items() if v is not None}})


@dataclass(slots=True)
class Graph:
    """A graph, resolved: every port found, every parameter filled in."""

    name: str
    about: str = ""
    seed: int = 0
    torch_threads: int = 1
    limits: Limits = field(default_factory=Limits)
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    placements: dict[str, dict[str, str]] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()  # where modules beside the graph lie

    def edges_into(self, node: str) -> list[Edge]:
        """The edges that end in a node."""
        return [e for e in self.edges if e.to.node == node]

    def nodes_of_role(self, role: str) -> list[str]:
        """The names of the nodes of a role, sorted."""
        return sorted(n for n, spec in self.nodes.items() if spec.cls.role == role)


def link_edges(graph: Graph) -> list[Edge]:
    """The links of a graph, each with one service: one that names several is one for each."""
    found = [edge for edge in graph.edges if edge.kind == "link"]
    return [replace(edge, sources=(source,)) for edge in found for source in edge.sources]


def linked_groups(graph: Graph) -> list[set[str]]:
    """The nodes that links join, as groups (every node is in one)."""
    group: dict[str, set[str]] = {n: {n} for n in graph.nodes}
    for edge in link_edges(graph):
        a, b = group[edge.source.node], group[edge.to.node]
        if a is not b:
            a |= b
            for name in b:
                group[name] = a
    return list({id(g): g for g in group.values()}.values())
