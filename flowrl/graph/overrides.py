"""The values of `--set`, put into the tree of a graph before its nodes are read.

A key names a parameter of a node or of one of its parts (`learner.lr`), an option of the edge into a port
(`collector.weights.lag`), or a section (`policy.lr`, `seed`, `limits.steps`). A node of a part-graph is named by its
path: `pair/learner.lr`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from flowrl.core.errors import GraphError, Problem, Problems, spelling_hint
from flowrl.core.node import Node
from flowrl.core.ports import Out, Service, StateOut
from flowrl.graph.catalogue import Catalogue, UnknownTypeError
from flowrl.graph.edge_reader import option_problem
from flowrl.graph.keywords import NODE_KEYS, PART_KEYS, ROOT_KEYS, is_file
from flowrl.graph.model import Edge, Graph, NodeSpec, NodeType, PortRef
from flowrl.graph.param_reader import part_default, part_fields
from flowrl.graph.settings import graph_settings
from flowrl.graph.tree import as_mapping, set_value
from flowrl.graph.yaml_text import SourceLocation, YamlValue, parse_value

KeyPath = list[str]

MOST_NAMED = 3  # settings that a hint names
_NOT_SETTABLE = {"nodes", "edges", "ports", "extends"}  # an extending file changes them


class Overrides:
    """The values of `--set`, and which of them are not placed yet."""

    def __init__(self, values: Mapping[str, str], catalogue: Catalogue, problems: Problems) -> None:
        self.catalogue, self.problems = catalogue, problems
        self.warnings = Problems()  # settings that another type does not have
        self.pending: list[tuple[KeyPath, YamlValue]] = []
        self.edge_options: list[tuple[PortRef, str, YamlValue]] = []
        for key, text in values.items():
            try:
                value = parse_value(text, f"--set {key}={text}")
            except GraphError as error:
                problems.extend(error.problems)
            else:
                self.pending.append((key.strip().split("."), value))
        self._locations = {value.location for _, value in self.pending}
        # Types come first, and wholes before their parts, so that the order of the values does not matter.
        self.pending.sort(key=lambda setting: (setting[0][-1] != "type", len(setting[0])))

    def set_graph_params(self, tree: YamlValue) -> YamlValue:
        """The tree with values for the graph's own `params`, which are set before all others."""
        mine = [s for s in self.pending if s[0][0] == "params"]
        self.pending = [s for s in self.pending if s[0][0] != "params"]
        for path, value in mine:
            if len(path) == 2 and path[1] in tree.fields.get("params", tree).fields:
                tree = self.place_value(tree, path, value)
            else:
                known = tree.fields.get("params", YamlValue({}, tree.location)).fields
                what = f"params: unknown parameter '{'.'.join(path[1:])}'"
                hint = spelling_hint(".".join(path[1:]), known)
                self.problems.add(value.location, what, hint)
        return tree

    def set_values(self, tree: YamlValue, prefix: str) -> YamlValue:
        """The tree of the graph, or of the part-graph with this prefix, with the values that belong into it."""
        left, self.pending = self.pending, []
        in_parts: list[tuple[KeyPath, YamlValue]] = []
        for path, value in left:
            name, known = path[0].removeprefix(prefix), tree.fields.get("nodes", tree).fields
            if not path[0].startswith(prefix):
                self.pending.append((path, value))
            elif name in known and self.is_in_part(as_mapping(known[name]), path):
                in_parts.append(([name, *path[1:]], value))
            elif name in known:
                tree = self.set_in_node(tree, prefix, [name, *path[1:]], value)
            elif name in self.settable_sections(tree, prefix):
                tree = self.set_parameter(tree, [name, *path[1:]], value)
            else:
                self.pending.append((path, value))
        for path, value in in_parts:  # the parts, which have their types by now
            tree = self.set_in_part(tree, prefix, path, value)
        return tree

    def settable_sections(self, tree: YamlValue, prefix: str) -> set[str]:
        own, keys = set(tree.fields), PART_KEYS if prefix else ROOT_KEYS
        return (own - set(keys) if prefix else own | set(keys)) - _NOT_SETTABLE

    def set_in_node(
        self, tree: YamlValue, prefix: str, path: KeyPath, value: YamlValue
    ) -> YamlValue:
        name, node = path[0], as_mapping(tree.fields["nodes"].fields[path[0]])
        if len(path) == 1:
            hint = f"set one of its parameters: {prefix}{name}.KEY"
            self.problems.add(value.location, f"'{prefix}{name}' is a node", hint)
            return tree
        if path[1:] == ["type"]:
            return self.set_node_type(tree, prefix, name, value)
        cls, key = self.node_type(node), path[1]
        if cls is None or key in NODE_KEYS or key in cls.Config.model_fields:
            return self.set_parameter(tree, ["nodes", *path], value)
        self.note_edge_option(PortRef(prefix + name, key), cls, path[2:], value)
        return tree

    def is_in_part(self, node: YamlValue, path: KeyPath) -> bool:
        """Return whether a key of a node (`learner.lr`) can only be that of one of its parts (`learner.policy.lr`)."""
        cls = self.node_type(node) if len(path) > 1 and path[1] not in NODE_KEYS else None
        if cls is None or path[1] in cls.Config.model_fields or path[1] in cls.ports:
            return False
        return not (_has_further_ports(cls) and len(path) == 3)

    def set_in_part(
        self, tree: YamlValue, prefix: str, path: KeyPath, value: YamlValue
    ) -> YamlValue:
        """The tree with a value set in the part of a node that has this parameter."""
        name, key = path[:2]
        node = as_mapping(tree.fields["nodes"].fields[name])
        cls = self.node_type(node)
        assert cls is not None
        known = {*cls.Config.model_fields, *cls.ports, *NODE_KEYS}
        for part, fields in self.part_parameters(cls, node, tree):
            if key in fields:
                return self.set_parameter(tree, ["nodes", name, part, *path[1:]], value)
            known.update(fields)
        what = f"'{prefix}{name}' has no parameter '{key}'"
        self.problems.add(value.location, what, spelling_hint(key, known))
        return tree

    def set_node_type(self, tree: YamlValue, prefix: str, name: str, value: YamlValue) -> YamlValue:
        """The tree with another type of a node, which keeps the settings that the new type has, too."""
        node = as_mapping(tree.fields["nodes"].fields[name])
        named = YamlValue(value.value, value.location, value.location)
        changed = YamlValue({**node.fields, "type": named}, node.location, node.key_location)
        cls = self.node_type(changed)
        if cls is not None:
            known = {*NODE_KEYS, *cls.Config.model_fields}
            lost = [key for key in node.fields if key not in known]
            why = f"which {value.plain()} does not have"
            self.warn_of_lost(value, f"nodes.{prefix}{name}", lost, why)
            kept = {k: v for k, v in changed.fields.items() if k not in lost}
            changed = YamlValue(kept, node.location, node.key_location)
        return set_value(tree, ["nodes", name], changed)

    def place_value(self, tree: YamlValue, path: KeyPath, value: YamlValue) -> YamlValue:
        """The tree with one value set; a problem if another one of `--set` has set it, or a part of it, already."""
        old: YamlValue | None = tree
        for key in path:
            old = as_mapping(old).fields.get(key) if old is not None else None
        if other := self.first_set_in(old):
            what = f"'{other.file}' sets this value, too"
            self.problems.add(value.location, what, "leave one of them out")
            return tree
        return set_value(tree, path, value)

    def first_set_in(self, item: YamlValue | None) -> SourceLocation | None:
        """The location of the first value of `--set` that is this item, or is within it."""
        if item is None or item.location in self._locations:
            return item.location if item else None
        found = map(self.first_set_in, [*item.fields.values(), *item.items])
        return next((location for location in found if location), None)

    def set_parameter(self, tree: YamlValue, path: KeyPath, value: YamlValue) -> YamlValue:
        """The tree with a value set below a section or a node."""
        part = tree
        for key in path[:-1]:
            part = as_mapping(part.fields.get(key, YamlValue({}, value.location)))
        old = part.fields.get("type")
        if path[-1] == "type" and old is not None and old.value != value.value:
            lost = [key for key in part.fields if key != "type"]
            why = f"which was set for {old.plain()}"
            self.warn_of_lost(value, ".".join(path[:-1]), lost, why)
        return self.place_value(tree, path, value)

    def warn_of_lost(self, value: YamlValue, path: str, lost: Iterable[str], why: str) -> None:
        if names := ", ".join(lost):
            what = f"{path}: left out {names}, {why}"
            self.warnings.append(Problem(str(value.location), what, warning=True))

    def node_type(self, node: YamlValue) -> NodeType | None:
        """A node's class; None for a part-graph, and for a type that is reported when the node is read."""
        named = node.fields.get("type")
        if named is None or not isinstance(named.value, str) or is_file(named.value):
            return None
        try:
            return self.catalogue.find("node", named.value)
        except UnknownTypeError:
            return None

    def part_parameters(
        self, cls: NodeType, node: YamlValue, tree: YamlValue
    ) -> Iterator[tuple[str, Iterable[str]]]:
        """Each part of a node with the names of its parameters."""
        for part, about in part_fields(cls.Config).items():
            written = (node.fields.get(part), tree.fields.get(about["shared"]))
            types = [as_mapping(item).fields.get("type") for item in written if item]
            name = next((item.value for item in types if item), part_default(about))
            if isinstance(name, str):
                try:
                    yield part, self.catalogue.find(about["part"], name).Config.model_fields
                except UnknownTypeError:
                    continue

    def note_edge_option(self, to: PortRef, cls: NodeType, path: KeyPath, value: YamlValue) -> None:
        if isinstance(cls.ports.get(to.port), Out | StateOut | Service):
            hint = "options belong to the edge's input: NODE.INPUT.OPTION"
            self.problems.add(value.location, f"{to} is an output", hint)
        elif len(path) != 1:
            hint = f"set an option of its edge: {to}.OPTION"
            self.problems.add(value.location, f"{to} is an input", hint)
        else:
            self.edge_options.append((to, path[0], value))

    def set_edge_options(
        self, edges: dict[PortRef, Edge], incomplete: Container[str] = frozenset()
    ) -> None:
        """Set the options of edges. Those into `incomplete` nodes may be missing, which is reported already."""
        for to, option, item in self.edge_options:
            if to not in edges and to.node in incomplete:
                continue
            if to not in edges:
                self.problems.add(
                    item.location, f"no edge ends in {to}", spelling_hint(str(to), map(str, edges))
                )
            elif problem := option_problem(edges[to], option, item):
                self.problems.append(problem)
            else:
                edges[to] = edges[to].with_option(option, item.value)

    def report_unplaced(self, nodes: Mapping[str, NodeSpec], tree: YamlValue) -> None:
        """Report values whose key names nothing."""
        known = {*nodes, *self.settable_sections(tree, "")}
        for path, value in self.pending:
            what = f"there is no node or section '{path[0]}'"
            named = _settings_named(path[0], nodes) if len(path) == 1 else []
            if path[0] == "nodes" and len(path) > 1:  # as in the file
                named = [".".join(path[1:])]
            hint = f"did you mean {' or '.join(map(repr, named[:MOST_NAMED]))}?" if named else ""
            self.problems.add(value.location, what, hint or spelling_hint(path[0], known))


def _settings_named(word: str, nodes: Mapping[str, NodeSpec]) -> list[str]:
    """The keys of the settings that have this name, such as `policy.lr`; the shortest come first."""
    keys = graph_settings(Graph("", nodes=dict(nodes)))
    return sorted(
        (key for key in keys if key.endswith(f".{word}")), key=lambda key: (len(key), key)
    )


def _has_further_ports(cls: NodeType) -> bool:
    """Return whether the ports of a type depend on its parameters, so that not all of them are known yet."""
    return any("configured" in vars(base) for base in cls.__mro__ if base is not Node)
