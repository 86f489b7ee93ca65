"""Reads the nodes and edges of one scope: of the graph, or of a part-graph in it. Scopes nest."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from flowrl.core.errors import GraphError, Problem, Problems, closest_word, spelling_hint
from flowrl.graph.bundled import locate
from flowrl.graph.catalogue import Catalogue
from flowrl.graph.edge_statements import EdgeStatement, parse_end, parse_statements
from flowrl.graph.keywords import NODE_KEYS, NODE_NAME, PART_KEYS, PORT_NAME, ROOT_KEYS, is_file
from flowrl.graph.model import NodeSpec, PortRef
from flowrl.graph.node_reader import NodeReader
from flowrl.graph.overrides import Overrides
from flowrl.graph.param_reader import Shared
from flowrl.graph.tree import GraphSource, Substitution, as_mapping, display_path, read_tree
from flowrl.graph.yaml_text import YamlValue

MOST_NODES = 10_000
MOST_NESTED = 20

_NOTHING: Mapping[str, YamlValue] = {}


class ScopeReader:
    """Reads nodes under their full names and edges as they are written, and collects problems."""

    def __init__(
        self, catalogue: Catalogue, overrides: Overrides, problems: Problems, folder: Path | None
    ) -> None:
        self.catalogue, self.overrides = catalogue, overrides
        self.problems, self.folder = problems, folder
        self.node_reader = NodeReader(catalogue, problems)
        self.nodes: dict[str, NodeSpec] = {}
        self.broken_nodes: set[str] = set()  # nodes that could not be read
        self.part_ports: dict[str, dict[str, PortRef]] = {}  # the ports that each part-graph shows
        self.statements: list[EdgeStatement] = []
        self.all_edges_read = True  # whether every edge could be read
        # Nodes that null removed, each with the files that may still name them.
        self.removed_nodes: dict[str, frozenset[str]] = {}
        self._sources: dict[Path, GraphSource] = {}

    def read(
        self,
        source: GraphSource,
        prefix: str = "",
        arguments: Mapping[str, YamlValue] = _NOTHING,
        outer: Shared = _NOTHING,
        above: tuple[Path, ...] = (),
    ) -> YamlValue | None:
        """Read a scope, and return its tree with all values in place; None if it has no nodes, which all else needs.

        `prefix` precedes the names of its nodes, `arguments` are the parameters of a part-graph, `outer` the sections
        of the scopes around it, and `above` the files of these scopes.
        """
        tree, keys = source.tree, PART_KEYS if prefix else ROOT_KEYS
        self.removed_nodes |= {prefix + name: files for name, files in source.removed.items()}
        if not prefix:
            tree = self.overrides.set_graph_params(tree)
        tree = self.overrides.set_values(self.substitute_params(tree, arguments), prefix)
        sections = {k: v for k, v in tree.fields.items() if k not in keys}
        nodes = tree.fields.get("nodes", YamlValue({}, tree.location))
        if not nodes.fields:
            what = "nodes: expected a mapping of names to nodes"
            self.problems.add(nodes.entry_location, what, "nodes: {name: {type: …}}")
            return None
        used, self.node_reader.params.used_sections = self.node_reader.params.used_sections, set()
        shared = {**outer, **sections}
        for name, item in nodes.fields.items():
            self.read_node(name, prefix, as_mapping(item), shared, above)
        self.report_unused_sections(sections, keys)
        self.node_reader.params.used_sections |= used
        self.read_edges(tree, prefix)
        return tree

    def read_edges(self, tree: YamlValue, prefix: str) -> None:
        before = len(self.problems)
        edges = tree.fields.get("edges", YamlValue([], tree.location))
        if not isinstance(edges.value, list):
            what = "edges: expected a list of edges"
            self.problems.add(edges.location, what, "edges: [a -> b, …]")
        self.statements += [s.within(prefix) for s in parse_statements(edges.items, self.problems)]
        self.all_edges_read &= len(self.problems) == before

    def substitute_params(self, tree: YamlValue, arguments: Mapping[str, YamlValue]) -> YamlValue:
        """The tree with every `${name}` replaced, and without `params`."""
        params = tree.fields.get("params", YamlValue({}, tree.location))
        if not isinstance(params.value, dict):
            what = "params: expected a mapping of names to values"
            self.problems.add(params.location, what, "params: {width: 64}")
        for name, item in arguments.items():
            if name not in params.fields:
                what = f"unknown parameter '{name}' of the part-graph"
                self.problems.add(
                    item.entry_location, what, spelling_hint(name, [*params.fields, *NODE_KEYS])
                )
        fill = Substitution(self.problems, params.fields)
        for name, item in params.fields.items():  # each parameter may use those before it
            value = arguments[name] if name in arguments else fill.substitute(item)
            fill.params[name] = value or YamlValue(None, item.location, item.key_location)
        rest = {k: v for k, v in tree.fields.items() if k != "params"}
        done = fill.substitute(YamlValue(rest, tree.location, tree.key_location)) or tree
        for name, item in params.fields.items():
            if name not in fill.used:
                hint = f"write ${{{name}}} where it is meant"
                self.problems.add(item.entry_location, f"params: '{name}' is used nowhere", hint)
        return done

    def report_unused_sections(self, sections: Shared, keys: tuple[str, ...]) -> None:
        """Report sections that no node of this scope takes."""
        if not sections:
            return
        params, kinds = self.node_reader.params, set(self.catalogue.kinds()) - {"node"}
        for name, item in sections.items():
            if name in params.used_sections:
                continue
            if name not in params.known_sections | kinds:
                known = {*keys, "extends", *params.known_sections}
                if self.broken_nodes and closest_word(name, kinds):  # what they take is unknown
                    known |= kinds
                hint = spelling_hint(name, known)
                self.problems.add(item.entry_location, f"unknown key '{name}'", hint)
            elif not self.broken_nodes:  # a node that could not be read may be the one that uses it
                self.problems.add(item.entry_location, f"the section '{name}' is used by no node")

    def read_node(
        self, name: str, prefix: str, item: YamlValue, shared: Shared, above: tuple[Path, ...]
    ) -> None:
        full = prefix + name
        if full in self.nodes or full in self.part_ports or full in self.broken_nodes:
            self.problems.add(
                item.entry_location, f"nodes: there are two nodes '{full}'", "rename one"
            )
            return
        self.broken_nodes.add(full)
        if not NODE_NAME.fullmatch(name):
            hint = "use letters, digits, '_' and '-', a letter first"
            self.problems.add(item.entry_location, f"nodes: '{name}' is not a name", hint)
            return
        type_name = self.node_reader.read_type(full, item)
        if type_name is None:
            return
        if is_file(str(type_name.value)):
            self.read_part_graph(full, type_name, item, shared, above)
        elif (spec := self.node_reader.read_node(full, type_name, item, shared)) is not None:
            self.nodes[full] = spec
            self.broken_nodes.discard(full)

    # part-graphs

    def read_part_graph(
        self,
        name: str,
        type_name: YamlValue,
        item: YamlValue,
        shared: Shared,
        above: tuple[Path, ...],
    ) -> None:
        """Read a part-graph's nodes and edges under this node's name."""
        source = self.read_part_file(name, type_name, above)
        if source is None:
            return
        folders = (f.parent for f in source.files)
        self.catalogue.folders = tuple(dict.fromkeys([*self.catalogue.folders, *folders]))
        arguments = {k: v for k, v in item.fields.items() if k not in NODE_KEYS}
        before = len(self.nodes)
        tree = self.read(
            source, f"{name}/", arguments, shared, (*above, source.files[-1].resolve())
        )
        if tree is None:
            return
        keys = self.node_reader.read_engine_keys(name, item, None)
        for spec in islice(self.nodes.values(), before, None):
            if keys.least_replicas is not None or spec.least_replicas is not None:
                least = spec.least_replicas or spec.replicas
                spec.least_replicas = least * (keys.least_replicas or keys.replicas)
            spec.replicas *= keys.replicas
            if spec.cls.role != "learner" and spec.fires:
                spec.on_failure = keys.on_failure if keys.on_failure != "stop" else spec.on_failure
            if spec.fires and spec.torch_threads is None:
                spec.torch_threads = keys.torch_threads
        self.part_ports[name] = self.read_part_ports(name, tree, source.files[-1])
        self.broken_nodes.discard(name)

    def read_part_file(
        self, name: str, type_name: YamlValue, above: tuple[Path, ...]
    ) -> GraphSource | None:
        """Read a part-graph's file. Its path is relative to the file that names it."""
        location = type_name.location
        beside = Path(location.file).parent if location.line else self.folder or Path()
        path = locate(str(type_name.value), beside)
        problem = hint = ""
        if path is None:
            problem = f"there is no part-graph '{type_name.value}'"
            hint = "its path is from this file"
        elif path.resolve() in above:
            problem = f"the part-graph '{type_name.value}' contains itself"
        elif len(above) > MOST_NESTED:
            problem = f"part-graphs nest more than {MOST_NESTED} deep"
        elif len(self.nodes) > MOST_NODES:
            what = f"nodes.{name}: part-graphs make more than {MOST_NODES} nodes"
            raise GraphError([*self.problems, Problem(str(location), what, "use replicas")])
        if problem or path is None:
            self.problems.add(location, f"nodes.{name}: {problem}", hint)
            return None
        try:
            if path not in self._sources:
                self._sources[path] = read_tree(path)
            return self._sources[path]
        except GraphError as error:
            self.problems.extend(error.problems)
            return None

    def read_part_ports(self, part: str, tree: YamlValue, path: Path) -> dict[str, PortRef]:
        """The ports that a part-graph shows, by the names that it gives them."""
        ports = tree.fields.get("ports")
        if ports is None or not ports.fields:
            what = f"the part-graph '{part}' shows no ports"
            hint = "ports: {data: inner.data}"
            self.problems.add(ports.location if ports else display_path(path), what, hint)
            return {}
        found = {
            name: self.find_inner_port(part, name, item) for name, item in ports.fields.items()
        }
        return {name: ref for name, ref in found.items() if ref is not None}

    def find_inner_port(self, part: str, name: str, item: YamlValue) -> PortRef | None:
        if not PORT_NAME.fullmatch(name):
            self.problems.add(
                item.entry_location, f"ports: '{name}' is not a name", "use letters, digits and '_'"
            )
            return None
        end = parse_end(item.value if isinstance(item.value, str) else "")
        node = f"{part}/{end.node}"
        if end.port in self.part_ports.get(node, {}):
            return self.part_ports[node][end.port]
        if node in self.nodes and end.port in self.nodes[node].cls.ports:
            return PortRef(node, end.port)
        if node not in self.broken_nodes:
            what = f"ports.{name}: there is no port '{item.plain()}'"
            ports = self.nodes[node].cls.ports if node in self.nodes else self.part_ports.get(node)
            names = [n.removeprefix(f"{part}/") for n in self.nodes if n.startswith(f"{part}/")]
            hint = (
                spelling_hint(end.node, names) if ports is None else spelling_hint(end.port, ports)
            )
            self.problems.add(item.location, what, hint)
        return None
