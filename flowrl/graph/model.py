"""The graph as data: the result of reading its files."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from flowrl.core.config import Config, PartSpec, field_extras
from flowrl.core.node import Node
from flowrl.core.ports import AUTO, In, Out, Port, Rate
from flowrl.core.wording import count_text
from flowrl.graph.edge_options import EdgeKind, EdgeOption, option
from flowrl.graph.tree import display_path
from flowrl.graph.yaml_text import SourceLocation, YamlValue, keys_of

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
    """A node of the graph: its type, its parameters, and its number of replicas."""

    name: str
    type: str
    cls: NodeType
    config: Config
    written: YamlValue  # the parameters as they were written, with their locations
    replicas: int = 1  # the most, if some of them may be absent
    least_replicas: int | None = None  # the first ones, which must be there; None: all of them
    on_failure: OnFailure = "stop"
    torch_threads: int | None = None  # in its firings; None: the graph's
    # The sections at the top of the graph, from which the node may take parts.
    shared: Mapping[str, YamlValue] = field(default_factory=dict)

    @property
    def fires(self) -> bool:
        """Whether the node has firings of its own. Other nodes are only called."""
        return self.cls.fire is not Node.fire

    @property
    def fires_on_any(self) -> bool:
        """Whether the node fires with whatever tokens there are, so that none of its rates balances."""
        return self.cls.fires_on_any(self.config)

    @property
    def written_replicas(self) -> int | str:
        """The number of replicas, or `2..16` if some of them may be absent."""
        least = self.least_replicas
        return self.replicas if least is None else f"{least}..{self.replicas}"

    def may_be_absent(self, replica: int) -> bool:
        """Whether a run on hosts may begin without this replica."""
        return self.least_replicas is not None and replica >= self.least_replicas

    @property
    def is_group(self) -> bool:
        """Whether it has several replicas that fire together, each with its part of the rows of each token."""
        return self.replicas > 1 and self.cls.replicas_form_group

    def port(self, name: str) -> Port:
        return self.cls.ports[name]

    def rate(self, name: str) -> int | None:
        """The rate of a stream port; None for `auto`."""
        param = self.rate_param(name)
        if param is not None:
            return int(getattr(self.config, param))
        rate = self._written_rate(name)
        return rate if isinstance(rate, int) else None

    def rate_param(self, name: str) -> str | None:
        """The parameter that gives the rate of a stream port; None where the rate is a number or `auto`."""
        rate = self._written_rate(name)
        return rate if isinstance(rate, str) and rate != AUTO else None

    def _written_rate(self, name: str) -> Rate:
        port = self.cls.ports[name]
        assert isinstance(port, In | Out)
        return port.rate

    def location(self, key: str = "") -> SourceLocation:
        """Where a parameter such as `lr`, `env.id` or `opponents[1].lr` was written, or else the node."""
        for written in (self.written.fields, self.shared):
            if found := _last_written(written, key):
                return found.entry_location
        return self.written.entry_location

    def locations(self) -> Iterator[SourceLocation]:
        """Where the sections were written from which the node takes parts, its parameters, and the node."""
        for info in self.cls.Config.model_fields.values():
            section = str(field_extras(info).get("shared"))
            if section in self.shared:
                yield self.shared[section].entry_location
                for item in self.shared[section].fields.values():
                    yield item.entry_location
        for item in self.written.fields.values():
            yield item.entry_location
        yield self.written.entry_location

    def owner(self, key: str) -> str:
        """What has a parameter such as `env.id`: this node, or the section from which the node takes it."""
        section = key.partition(".")[0].partition("[")[0]
        is_own = section in self.written.fields or section not in self.shared
        return f"nodes.{self.name}" if is_own else section


def _last_written(fields: Mapping[str, YamlValue], key: str) -> YamlValue | None:
    """The last value on a path such as `env.id`, `opponents[1].lr` or `explore.0.share` that is written."""
    found, items = None, list[YamlValue]()
    for word in keys_of(key):
        if word.isdecimal() and int(word) < len(items):
            found = items[int(word)]
        elif word in fields:
            found = fields[word]
        else:
            break
        fields, items = found.fields, found.items
    return found


def _lag_report(rounds: int) -> str:
    if rounds == 0:
        return "lag 0 (what the last round learned)"
    return f"lag {rounds} ({count_text(rounds, 'round')} older than the last)"


@dataclass(frozen=True, slots=True)
class Edge:
    """What feeds one input: a stream, a state or a link. Each option of edges is declared once, in this class."""

    kind: EdgeKind
    sources: tuple[PortRef, ...]
    to: PortRef
    location: SourceLocation
    lag: int = option(
        0,
        kinds=("state",),
        minimum=0,
        unit="rounds",
        meaning="in round r the consumer sees the version at the end of round r − 1 − lag; the lag behind a node that "
        "is paced counts its firings",
        label=lambda rounds: f"lag {rounds}",
        report=_lag_report,
        default_shown_unless=("every", "latest"),
    )
    every: int | None = option(
        None,
        kinds=("state",),
        minimum=1,
        unit="firings",
        meaning="the consumer fires right after each n-th version, and nothing else drives it",
        default_text="the consumer fires in rounds",
        label=lambda versions: f"every {versions}",
        report=lambda versions: f"every {versions} versions",
    )
    latest: bool = option(
        False,
        kinds=("state",),
        meaning="the consumer sees the newest version, whatever it is, and never waits for one",
        nondeterminism={True: "latest (the version depends on speed)"},
        label=lambda _: "latest",
        report=lambda _: "latest (whatever it is)",
    )
    max_staleness: int | None = option(
        None,
        kinds=("stream", "state"),
        minimum=0,
        unit="rounds",
        meaning="a graph that would be staler is refused; behind a `latest` state, a token that is staler when its "
        "learner takes it is dropped, counted and reported",
        default_text="no bound",
    )
    merge: Literal["order", "any"] = option(
        "order",
        kinds=("stream",),
        choices=("order", "any"),
        meaning="of several producers, `order` takes one token of each, in order, and concatenates them; `any` takes "
        "tokens as they come",
        nondeterminism={"any": "merge any (the order depends on speed)"},
        only_with_several_producers=True,
        label=lambda how: f"merge {how}",
    )
    capacity: int | None = option(
        None,
        kinds=("stream",),
        minimum=1,
        unit="tokens",
        meaning="how many tokens of each producer may wait on the edge",
        default_text="those of one round",
    )
    when_full: Literal["wait", "drop_oldest"] = option(
        "wait",
        kinds=("stream",),
        choices=("wait", "drop_oldest"),
        meaning="what a producer does that finds no room: it waits, or the oldest token is dropped and counted; edges "
        "joined with a lossy edge must be lossy as well",
        nondeterminism={"drop_oldest": "drop_oldest (what is dropped depends on speed)"},
        label=lambda how: str(how).replace("_", " "),
        report=str,
    )
    dtype: Literal["float32", "float16"] = option(
        "float32",
        kinds=("stream", "state"),
        choices=("float32", "float16"),
        meaning="`float16` rounds float32 numbers to half precision, in every placement, so that they take half the "
        "bytes between machines; float64 and whole numbers stay as they are",
        label=str,
        report=lambda dtype: f"rounded to {dtype} (in every placement)",
    )
    compress: Literal["none", "lz4", "zstd"] = option(
        "none",
        kinds=("stream", "state"),
        choices=("none", "lz4", "zstd"),
        meaning="compresses what goes from one machine to another, and changes nothing else",
        changes_bytes_only=True,
        label=str,
        report=lambda how: f"compressed between machines ({how})",
    )
    # The sources of the edge of an extended file that this one replaces.
    replaced_sources: tuple[PortRef, ...] = field(default=(), compare=False)

    @property
    def source(self) -> PortRef:
        """The first source, which is the only one of a state edge."""
        return self.sources[0]

    def with_sources_in(self, nodes: Container[str]) -> Edge:
        """The edge from those of its sources that are among these nodes."""
        sources = tuple(source for source in self.sources if source.node in nodes)
        return self if sources == self.sources else replace(self, sources=sources)

    def with_option(self, name: str, value: Any) -> Edge:
        return replace(self, **{name: value})

    def __str__(self) -> str:
        arrow = "<->" if self.kind == "link" else "->"
        return f"{', '.join(map(str, self.sources))} {arrow} {self.to}"

    def options(self) -> dict[str, Any]:
        """All options of this kind of edge, with their values."""
        return {n: getattr(self, n) for n, o in EDGE_OPTIONS.items() if self.kind in o.kinds}

    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as they are written."""
        return {n: v for n in EDGE_OPTIONS if (v := getattr(self, n)) != EDGE_OPTIONS[n].default}

    def option_labels(self) -> list[str]:
        """The options that a picture shows at this edge, in few words."""
        return [o.label(getattr(self, o.name)) for o in self._shown_options() if o.label]

    def option_reports(self) -> list[str]:
        """The options that a report states of this edge."""
        texts = [(o.report or o.label, getattr(self, o.name)) for o in self._shown_options()]
        return [text(value) for text, value in texts if text]

    def _shown_options(self) -> list[EdgeOption]:
        changed = self.changed_options()

        def is_shown(declared: EdgeOption) -> bool:
            unless = declared.default_shown_unless
            return declared.name in changed or (
                unless is not None and changed.keys().isdisjoint(unless)
            )

        return [
            o for o in EDGE_OPTIONS.values() if self.kind in o.kinds and o.label and is_shown(o)
        ]


EDGE_OPTIONS: Mapping[str, EdgeOption] = {
    f.name: EdgeOption(f.name, **f.metadata["option"]) for f in fields(Edge) if f.metadata
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A warm-up phase: the paths that are active, the settings that differ, and its length."""

    # From nodes to nodes: the name of a part-graph stands for several.
    paths: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    location: SourceLocation
    steps: int | None = None  # env steps, rounded up to whole rounds
    rounds: int | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # node, parameter

    def settings_by_path(self) -> dict[str, Any]:
        """The settings by `node.parameter`."""
        return {
            f"{node}.{name}": value
            for node, params in self.settings.items()
            for name, value in params.items()
        }


def paths_text(phase: Phase) -> str:
    """The active paths of a phase, as they are written: `collector -> buffer, …`."""
    return ", ".join(f"{', '.join(a)} -> {', '.join(b)}" for a, b in phase.paths)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the length of a run. The one that is reached first ends it."""

    steps: int | None = None
    train_iters: int | None = None
    rounds: int | None = None
    time_s: float | None = None

    def overridden_by(self, others: Limits) -> Limits:
        """These limits, except where another one is given."""
        given = {n: getattr(others, n) for n in Limits.__slots__}
        return replace(self, **{name: limit for name, limit in given.items() if limit is not None})


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """How often a run saves snapshots, and how many it keeps."""

    every_s: float | None = None
    every_rounds: int | None = None
    keep: int = 2
    is_off: bool = False  # whether none is saved by the clock

    @property
    def is_regular(self) -> bool:
        """Whether the graph says how often they are saved."""
        return self.every_s is not None or self.every_rounds is not None


SNAPSHOT_KEYS = ("every_s", "every_rounds", "keep")


@dataclass(slots=True)
class Graph:
    """A resolved graph: every port is found and every parameter has a value."""

    name: str
    about: str = ""
    seed: int = 0
    torch_threads: int = 1
    limits: Limits = field(default_factory=Limits)
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    placements: dict[str, dict[str, Any]] = field(default_factory=dict)  # as they are written
    launch: tuple[PartSpec, ...] = ()  # what starts the hosts of a run
    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()  # of the modules beside the graph

    def edges_into(self, node: str) -> list[Edge]:
        return [e for e in self.edges if e.to.node == node]

    def last_written(self, locations: Iterable[SourceLocation]) -> SourceLocation:
        """The first of the locations that are in the file that extends the others, or on the command line.

        What an extending file changes is the cause if values of several files do not fit together.
        """
        order = {display_path(file): number for number, file in enumerate(self.files)}
        order.setdefault(self.name, len(order))  # plain data, which extends all files
        return max(locations, key=lambda location: order.get(location.file, len(order)))

    def nodes_of_role(self, role: str) -> list[str]:
        """The names of the nodes with a role, sorted."""
        return sorted(n for n, spec in self.nodes.items() if spec.cls.role == role)

    @property
    def most_torch_threads(self) -> int:
        """The largest number of threads that torch uses at a time on one site."""
        own = [spec.torch_threads or 1 for spec in self.nodes.values()]
        return max(self.torch_threads, *own)

    @property
    def first_learner(self) -> str | None:
        """The learner whose firings are the run's train iterations."""
        return next(iter(self.nodes_of_role("learner")), None)


def link_edges(graph: Graph) -> list[Edge]:
    """The links of a graph, each with one service. An edge with several services becomes several links."""
    found = [edge for edge in graph.edges if edge.kind == "link"]
    return [replace(edge, sources=(source,)) for edge in found for source in edge.sources]


def client_roles(graph: Graph) -> dict[str, frozenset[str]]:
    """For each node with a service, the roles of the nodes that are linked to it."""
    found: dict[str, frozenset[str]] = {}
    for edge in link_edges(graph):
        role = graph.nodes[edge.to.node].cls.role
        found[edge.source.node] = found.get(edge.source.node, frozenset()) | {role}
    return found


def linked_groups(graph: Graph) -> list[set[str]]:
    """The groups of nodes that links join. Every node is in one group."""
    group: dict[str, set[str]] = {n: {n} for n in graph.nodes}
    for edge in link_edges(graph):
        a, b = group[edge.source.node], group[edge.to.node]
        if a is not b:
            a |= b
            for name in b:
                group[name] = a
    return list({id(g): g for g in group.values()}.values())
