"""Reading a graph: files to a resolved `Graph`, and every problem found on the way.

Order: the file and what it extends, `--set`, `${params}`, part-graphs put in place, nodes and their parameters,
edges between ports, and last the sections that name nodes (warm-up, placements).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from flowrl.catalogue import Catalogue, UnknownType
from flowrl.config import REQUIRED
from flowrl.edges import EdgeReader, End, Statement, end_of
from flowrl.errors import GraphError, Problem, nearest
from flowrl.graph import Graph, Limits, NodeSpec, PortRef
from flowrl.params import ParamReader, extra, part_fields
from flowrl.phases import read_phases
from flowrl.ports import In, StateIn
from flowrl.tree import locate, merge, put, read_graph, shown, substitute
from flowrl.yamlfile import Item, Mark, item_of, parse_value

ROOT_KEYS = (
    "about",
    "seed",
    "torch_threads",
    "limits",
    "params",
    "nodes",
    "edges",
    "warmup",
    "placements",
)
PART_KEYS = ("about", "params", "ports", "nodes", "edges")
NODE_KEYS = ("type", "replicas", "on_failure")
FAILURES = ("stop", "restart", "ignore")

_NAME = re.compile(r"[A-Za-z_]\w*(-\w+)*(/[A-Za-z_]\w*(-\w+)*)*")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}
_SITE = re.compile(r"[\w.*?@:/\[\]-]+")


@dataclass(slots=True)
class Loaded:
    """A graph as far as it could be read, and what is wrong with it."""

    graph: Graph
    tree: Item
    problems: list[Problem] = field(default_factory=list)


def graphs_folder() -> Path:
    """Where the bundled graphs lie."""
    return Path(str(resources.files("flowrl.graphs")))


def bundled_graphs() -> list[str]:
    """The names of the bundled graphs."""
    return sorted(p.stem for p in graphs_folder().glob("*.yaml"))


def find_bundled(name: str) -> Path | None:
    """The file of a bundled graph."""
    path = graphs_folder() / (name if name.endswith(".yaml") else f"{name}.yaml")
    return path if path.is_file() and "/" not in name else None


def load(source: str | Path, sets: Mapping[str, str] | None = None) -> Loaded:
    """Read a graph by its file or bundled name; `sets` are values as `--set` takes them."""
    tree, files = read_graph(str(source), find_bundled, bundled_graphs)
    loader = _Loader(tuple(dict.fromkeys(f.parent for f in files)))
    tree = loader.apply(tree, sets or {})
    name = Path(source).name.removesuffix(".yaml").removesuffix(".yml")
    return loader.graph(tree, name, tuple(files))


def load_tree(
    data: Mapping[str, Any], name: str = "graph", sets: Mapping[str, str] | None = None
) -> Loaded:
    """A graph from plain data."""
    loader = _Loader(())
    tree = loader.apply(item_of(data, Mark(name)), sets or {})
    return loader.graph(tree, name, ())


class _Loader:
    """Puts a graph together; collects problems."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.problems: list[Problem] = []
        self.catalogue = Catalogue(folders)
        self.params = ParamReader(self.catalogue, self.problems)
        self.nodes: dict[str, NodeSpec] = {}
        self.broken: set[str] = set()
        self.parts: dict[str, dict[str, PortRef]] = {}
        self.edge_sets: list[tuple[PortRef, str, Item]] = []
        self.folder = folders[-1] if folders else None

    def problem(self, mark: Mark, what: str, hint: str = "") -> None:
        self.problems.append(Problem(str(mark), what, hint))

    def graph(self, tree: Item, name: str, files: tuple[Path, ...]) -> Loaded:
        """The whole graph."""
        graph = Graph(name, nodes=self.nodes, files=files)
        reader = EdgeReader(self.nodes, self.parts, self.broken, self.problems)
        tree, statements = self.scope(
            tree, "", {}, {}, reader, ROOT_KEYS, [self.folder] if self.folder else []
        )
        graph.edges = self.with_sets(reader.edges(statements), reader)
        self.root(tree, graph)
        return Loaded(graph, tree, self.problems)

    # --set

    def apply(self, tree: Item, sets: Mapping[str, str]) -> Item:
        """The tree with the command line's values in it."""
        for key, text in sets.items():
            value = parse_value(text, f"--set {key}={text}")
            tree = self.set_one(tree, key.strip().split("."), value)
        return tree

    def set_one(self, tree: Item, path: list[str], value: Item) -> Item:
        nodes = tree.fields.get("nodes")
        node = nodes.fields.get(path[0]) if nodes else None
        if node is None:
            sections = {*ROOT_KEYS, *tree.fields} - {"nodes", "edges", "warmup"}
            if path[0] not in sections:
                known = {*sections, *(nodes.fields if nodes else ())}
                self.problem(
                    value.mark, f"there is no node or section '{path[0]}'", nearest(path[0], known)
                )
                return tree
            return put(tree, path, value)
        if len(path) == 1:
            self.problem(
                value.mark, f"'{path[0]}' is a node", f"set one of its parameters: {path[0]}.KEY"
            )
            return tree
        return self.set_in_node(tree, path, value, node)

    def set_in_node(self, tree: Item, path: list[str], value: Item, node: Item) -> Item:
        """A node's own key, an option of the edge into one of its inputs, or a parameter of one of its parts."""
        type_item = node.fields.get("type")
        name = type_item.value if type_item else node.value
        try:
            cls = (
                self.catalogue.find("node", name)
                if isinstance(name, str) and not _is_file(name)
                else None
            )
        except UnknownType:
            cls = None  # told when the node is read
        key = path[1]
        if cls is None or key in NODE_KEYS or key in cls.Config.model_fields:
            return put(tree, ["nodes", *path], value)
        if isinstance(cls.ports.get(key), In | StateIn) and len(path) == 3:
            self.edge_sets.append((PortRef(path[0], key), path[2], value))
            return tree
        for part, config in self.part_configs(cls, node, tree):
            if key in config.model_fields:
                return put(tree, ["nodes", path[0], part, *path[1:]], value)
        known = {*cls.Config.model_fields, *cls.ports}
        self.problem(value.mark, f"'{path[0]}' has no parameter '{key}'", nearest(key, known))
        return tree

    def part_configs(self, cls: Any, node: Item, tree: Item) -> Iterator[tuple[str, Any]]:
        """The parameters' classes of a node's parts."""
        for part, about in part_fields(cls.Config).items():
            item = node.fields.get(part) or tree.fields.get(about["shared"])
            named = item.fields.get("type", item) if item else None
            default = about["written"]
            fallback = default.get("type") if isinstance(default, Mapping) else default
            name = named.value if named is not None and isinstance(named.value, str) else fallback
            if isinstance(name, str):
                try:
                    yield part, self.catalogue.find(about["part"], name).Config
                except UnknownType:
                    continue

    def with_sets(self, edges: list[Any], reader: EdgeReader) -> list[Any]:
        for ref, option, item in self.edge_sets:
            found = [i for i, e in enumerate(edges) if e.to == ref]
            if not found:
                self.problem(item.mark, f"no edge ends in {ref}")
            elif reader.option(option, item, edges[found[0]].kind, ref):
                edges[found[0]] = replace(edges[found[0]], **{option: item.value})
        return edges

    # one file's nodes and edges: the graph, or a part-graph in it

    def scope(
        self,
        tree: Item,
        prefix: str,
        given: Mapping[str, Item],
        outer: Mapping[str, Item],
        reader: EdgeReader,
        keys: tuple[str, ...],
        above: list[Path],
    ) -> tuple[Item, list[Statement]]:
        """Reads nodes and edges; names get the prefix, `given` are a part-graph's parameters."""
        tree = self.substituted(tree, given)
        sections = {k: v for k, v in tree.fields.items() if k not in keys}
        shared = {**outer, **sections}
        statements: list[Statement] = []
        nodes = tree.fields.get("nodes", Item({}, tree.mark))
        if not isinstance(nodes.value, dict) or not nodes.value:
            self.problem(
                nodes.at, "nodes: expected a mapping of names to nodes", "nodes: {name: {type: …}}"
            )
        for name, item in nodes.fields.items():
            statements += self.node(name, prefix, item, shared, reader, above)
        self.unused(sections, keys, tree)
        edges = tree.fields.get("edges", Item([], tree.mark))
        if not isinstance(edges.value, list):
            self.problem(edges.mark, "edges: expected a list of edges", "edges: [a -> b, …]")
        own = (_prefixed(s, prefix) for s in reader.statements(edges.items))
        return tree, [*statements, *own]

    def substituted(self, tree: Item, given: Mapping[str, Item]) -> Item:
        params = tree.fields.get("params", Item({}, tree.mark))
        if not isinstance(params.value, dict):
            self.problem(params.mark, "params: expected a mapping of names to values")
        for name, item in given.items():
            if name not in params.fields:
                self.problem(
                    item.at,
                    f"unknown parameter '{name}' of the part-graph",
                    nearest(name, params.fields),
                )
        values = {**params.fields, **given}
        used: set[str] = set()
        rest = {k: v for k, v in tree.fields.items() if k != "params"}
        done = substitute(Item(rest, tree.mark), values, self.problems, used)
        for name in params.fields.keys() - used:
            self.problem(
                params.fields[name].at,
                f"params: '{name}' is used nowhere",
                f"write ${{{name}}} where it is meant",
            )
        return done

    def unused(self, sections: Mapping[str, Item], keys: tuple[str, ...], tree: Item) -> None:
        known = {*keys, "extends", *self.shared_names()}
        for name, item in sections.items():
            if name not in self.params.used:
                if name in self.shared_names():
                    self.problem(item.at, f"the section '{name}' is used by no node")
                else:
                    self.problem(item.at, f"unknown key '{name}'", nearest(name, known))

    def shared_names(self) -> set[str]:
        """The sections that the nodes read so far would take."""
        return {
            about["shared"]
            for spec in self.nodes.values()
            for about in part_fields(spec.cls.Config).values()
            if about["shared"]
        }

    def node(
        self,
        name: str,
        prefix: str,
        item: Item,
        shared: Mapping[str, Item],
        reader: EdgeReader,
        above: list[Path],
    ) -> list[Statement]:
        full = prefix + name
        self.broken.add(full)
        if not _NAME.fullmatch(name):
            self.problem(
                item.at, f"nodes: '{name}' is not a name", "use letters, digits, '_' and '-'"
            )
            return []
        if isinstance(item.value, str):
            item = Item({"type": Item(item.value, item.mark)}, item.mark, item.key)
        if not isinstance(item.value, dict):
            self.problem(item.at, f"nodes.{full}: expected a type, or a mapping with 'type'")
            return []
        named = item.fields.get("type")
        if named is None or not isinstance(named.value, str):
            hint = (
                nearest("", self.catalogue.names("node"))
                if named is None
                else "expected a type's name"
            )
            self.problem(named.mark if named else item.at, f"nodes.{full}: missing 'type'", hint)
            return []
        if _is_file(named.value):
            return self.part_graph(full, named, item, shared, reader, above)
        spec = self.node_spec(full, named, item, shared)
        if spec is not None:
            self.nodes[full] = spec
            self.broken.discard(full)
        return []

    def node_spec(
        self, name: str, named: Item, item: Item, shared: Mapping[str, Item]
    ) -> NodeSpec | None:
        path = f"nodes.{name}"
        try:
            cls = self.catalogue.find("node", str(named.value))
        except UnknownType as error:
            self.problem(named.mark, f"{path}: {error.what}", error.hint)
            return None
        own = Item(
            {k: v for k, v in item.fields.items() if k not in NODE_KEYS}, item.mark, item.key
        )
        self.params.used |= {
            a["shared"] for a in part_fields(cls.Config).values() if a["shared"]
        } & set(shared)
        config = self.params.config(cls.Config, own, shared, path)
        replicas, on_failure = self.engine_keys(item, path, cls.role)
        if config is None:
            return None
        return NodeSpec(name, str(named.value), cls, config, own, replicas, on_failure, shared)

    def engine_keys(self, item: Item, path: str, role: str) -> tuple[int, Any]:
        replicas, on_failure = item.fields.get("replicas"), item.fields.get("on_failure")
        count, failure = 1, "stop"
        if replicas is not None:
            if (
                isinstance(replicas.value, int)
                and not isinstance(replicas.value, bool)
                and replicas.value >= 1
            ):
                count = replicas.value
            else:
                self.problem(
                    replicas.mark, f"{path}.replicas is {replicas.plain()!r}", "expected 1 or more"
                )
        if on_failure is not None:
            if on_failure.value in FAILURES:
                failure = str(on_failure.value)
            else:
                self.problem(
                    on_failure.mark,
                    f"{path}.on_failure is {on_failure.plain()!r}",
                    f"expected {', '.join(FAILURES)}",
                )
            if role == "learner" and failure != "stop":
                self.problem(
                    on_failure.mark,
                    f"{path}: a learner's failure stops the run",
                    "leave on_failure out",
                )
        return count, failure

    def part_graph(
        self,
        name: str,
        named: Item,
        item: Item,
        shared: Mapping[str, Item],
        reader: EdgeReader,
        above: list[Path],
    ) -> list[Statement]:
        """The nodes and edges of a file, under this node's name."""
        beside = Path(named.mark.file).parent if named.mark.line else self.folder
        path = locate(str(named.value), beside, find_bundled)
        if path is None:
            self.problem(
                named.mark,
                f"nodes.{name}: there is no part-graph '{named.value}'",
                "its path is from this file",
            )
            return []
        if path.resolve() in [p.resolve() for p in above] or len(above) > 20:
            self.problem(
                named.mark, f"nodes.{name}: the part-graph '{named.value}' contains itself"
            )
            return []
        try:
            tree, files = read_graph(str(path), find_bundled, bundled_graphs)
        except GraphError as error:
            self.problems.extend(error.problems)
            return []
        self.catalogue.folders = tuple(
            dict.fromkeys([*self.catalogue.folders, *(f.parent for f in files)])
        )
        given = {k: v for k, v in item.fields.items() if k not in NODE_KEYS}
        before = set(self.nodes)
        tree, statements = self.scope(
            tree, f"{name}/", given, shared, reader, PART_KEYS, [*above, path]
        )
        replicas, on_failure = self.engine_keys(item, f"nodes.{name}", "")
        for inner in set(self.nodes) - before:
            self.nodes[inner].replicas *= replicas
            if on_failure != "stop" and self.nodes[inner].cls.role != "learner":
                self.nodes[inner].on_failure = on_failure
        self.parts[name] = self.part_ports(name, tree, path)
        self.broken.discard(name)
        return statements

    def part_ports(self, name: str, tree: Item, path: Path) -> dict[str, PortRef]:
        ports = tree.fields.get("ports")
        if ports is None or not isinstance(ports.value, dict):
            where = ports.mark if ports else Mark(shown(path))
            self.problem(
                where, f"the part-graph '{name}' shows no ports", "ports: {data: inner.data}"
            )
            return {}
        found = {}
        for outside, item in ports.fields.items():
            end = end_of(str(item.value))
            inner = f"{name}/{end.node}"
            nested = self.parts.get(inner, {}).get(end.port)
            spec = self.nodes.get(inner)
            if nested is not None:
                found[outside] = nested
            elif spec is not None and end.port in spec.cls.ports:
                found[outside] = PortRef(inner, end.port)
            elif inner not in self.broken:
                hint = (
                    nearest(end.port, spec.cls.ports)
                    if spec
                    else nearest(end.node, _inner(self.nodes, name))
                )
                self.problem(item.mark, f"ports.{outside}: there is no port '{item.value}'", hint)
        return found

    # the rest of the root

    def root(self, tree: Item, graph: Graph) -> None:
        fields = tree.fields
        about = fields.get("about")
        if about is not None and about.value is not None:
            graph.about = str(about.value).strip()
        graph.seed = self.number(fields.get("seed"), "seed", 0, 0, 2**63 - 1)
        graph.torch_threads = self.number(fields.get("torch_threads"), "torch_threads", 1, 1, 4096)
        graph.limits = self.limits(fields.get("limits"))
        graph.placements = self.placements(fields.get("placements"))
        self.linked_replicas(graph)
        if "warmup" in fields:
            graph.phases = read_phases(fields["warmup"], graph, self.parts, self.broken, self)

    def number(self, item: Item | None, path: str, default: int, least: int, most: int) -> int:
        if item is None:
            return default
        value = item.value
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.problem(
            item.mark,
            f"{path} is {item.plain()!r}",
            f"expected a whole number from {least} to {most}",
        )
        return default

    def limits(self, item: Item | None) -> Limits:
        if item is None:
            return Limits()
        if not isinstance(item.value, dict):
            self.problem(
                item.mark,
                "limits: expected a mapping",
                "limits: {steps: 100000, train_iters: 5000, time: 10m}",
            )
            return Limits()
        counts = ("steps", "train_iters", "rounds")
        for name in item.value.keys() - {*counts, "time"}:
            hint = nearest(name, (*counts, "time"))
            self.problem(item.value[name].at, f"limits: unknown key '{name}'", hint)
        found: dict[str, Any] = {}
        for name in counts:
            if name in item.value:
                found[name] = self.number(item.value[name], f"limits.{name}", 1, 1, 2**62)
        if "time" in item.value:
            time = item.value["time"]
            found["time_s"] = seconds(time.value)
            if found["time_s"] is None:
                self.problem(
                    time.mark,
                    f"limits.time is {time.plain()!r}",
                    "expected a time such as 30s, 10m or 2h",
                )
        return Limits(**found)

    def placements(self, item: Item | None) -> dict[str, dict[str, str]]:
        """Named placements: which nodes run where."""
        found: dict[str, dict[str, str]] = {}
        for name, placement in (item.fields if item else {}).items():
            found[name] = self.placement(name, placement)
        if item is not None and not isinstance(item.value, dict):
            self.problem(
                item.mark,
                "placements: expected a mapping",
                "placements: {parallel: {collector: process}}",
            )
        return found

    def placement(self, name: str, item: Item) -> dict[str, str]:
        found: dict[str, str] = {}
        for node, site in item.fields.items():
            known = {*self.nodes, *self.parts, *self.broken}
            if node not in known:
                self.problem(
                    site.at, f"placements.{name}: unknown node '{node}'", nearest(node, known)
                )
            elif not isinstance(site.value, str) or not _SITE.fullmatch(site.value):
                self.problem(
                    site.mark,
                    f"placements.{name}.{node} is {site.plain()!r}",
                    "expected thread, process or a host",
                )
            else:
                found[node] = site.value
        if not isinstance(item.value, dict):
            self.problem(item.mark, f"placements.{name}: expected a mapping of nodes to places")
        return found

    def linked_replicas(self, graph: Graph) -> None:
        """A linked group has one number of replicas: whichever of its nodes says it."""
        for group in linked_groups(graph):
            counts = {self.nodes[n].replicas for n in group} - {1}
            if len(counts) > 1:
                names = ", ".join(f"{n}: {self.nodes[n].replicas}" for n in sorted(group))
                mark = self.nodes[min(group)].mark()
                self.problem(
                    mark,
                    f"linked nodes have different replicas ({names})",
                    "give the number to one of them",
                )
            for name in group:
                self.nodes[name].replicas = max(counts, default=1)

    def setting_of(self, item: Item, node: str, key: str) -> Any:
        """The value that a warm-up phase gives a parameter."""
        if node in self.parts:
            self.problem(
                item.at,
                f"warmup: '{node}' is a part-graph",
                f"set a node of it: '{node}/NODE.{key}'",
            )
            return REQUIRED
        spec = self.nodes[node]
        info = spec.cls.Config.model_fields.get(key)
        if info is None:
            self.problem(
                item.at,
                f"warmup: '{node}' has no parameter '{key}'",
                nearest(key, spec.cls.Config.model_fields),
            )
            return REQUIRED
        if not extra(info).get("phase"):
            free = [n for n, i in spec.cls.Config.model_fields.items() if extra(i).get("phase")]
            hint = f"it may set: {', '.join(free) or 'nothing'}"
            self.problem(item.at, f"warmup: a phase cannot set '{node}.{key}'", hint)
            return REQUIRED
        written = Item({**spec.written.fields, key: item}, spec.written.mark, spec.written.key)
        config = self.params.config(spec.cls.Config, written, spec.shared, f"warmup: {node}")
        return REQUIRED if config is None else getattr(config, key)


def linked_groups(graph: Graph) -> list[set[str]]:
    """The nodes that links join, as groups (every node is in one)."""
    group: dict[str, set[str]] = {n: {n} for n in graph.nodes}
    for edge in graph.edges:
        if edge.kind == "link":
            a, b = group[edge.source.node], group[edge.to.node]
            if a is not b:
                a |= b
                for name in b:
                    group[name] = a
    return list({id(g): g for g in group.values()}.values())


def seconds(value: Any) -> float | None:
    """A time such as 90, 30s, 10m or 2h in seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if value > 0 else None
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    amount = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    return amount or None


def _is_file(type_name: str) -> bool:
    return type_name.endswith((".yaml", ".yml"))


def _prefixed(statement: Statement, prefix: str) -> Statement:
    if not prefix:
        return statement
    sources = tuple(End(prefix + s.node, s.port) for s in statement.sources)
    return replace(
        statement, sources=sources, to=End(prefix + statement.to.node, statement.to.port)
    )


def _inner(nodes: Mapping[str, Any], part: str) -> list[str]:
    return [n.removeprefix(f"{part}/") for n in nodes if n.startswith(f"{part}/")]


__all__ = [
    "Loaded",
    "bundled_graphs",
    "find_bundled",
    "graphs_folder",
    "linked_groups",
    "load",
    "load_tree",
    "merge",
    "seconds",
]
