"""Graph files as trees: applies `extends` and `${params}`. Each value keeps the location where it was written."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flowrl.core.errors import GraphError, Problem, spelling_hint
from flowrl.graph.bundled import bundled_graphs, locate
from flowrl.graph.yaml_text import YamlValue, read_yaml
from flowrl.graph.yaml_writer import scalar_text

_PARAM = re.compile(r"\$\{([^{}]*)\}")


def merge(base: YamlValue, over: YamlValue) -> YamlValue:
    """`over` laid over `base`: mappings are merged by key, null removes a key, anything else replaces the value."""
    if isinstance(over.value, dict):
        base = as_mapping(base)
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    old, new = base.value.get("type"), over.value.get("type")
    if old is not None and new is not None and old.value != new.value:
        return over  # another type has other parameters
    fields = dict(base.value)
    for name, item in over.value.items():
        if item.value is None and name in fields:
            del fields[name]
        elif name in fields:
            fields[name] = merge(fields[name], item)
        else:
            fields[name] = item
    return YamlValue(fields, over.location, over.key_location)


def as_mapping(item: YamlValue) -> YamlValue:
    """The long form of a value: `policy: random` is short for `policy: {type: random}`."""
    if isinstance(item.value, str):
        return YamlValue(
            {"type": YamlValue(item.value, item.location)}, item.location, item.key_location
        )
    return item


def merge_graph(base: YamlValue, over: YamlValue) -> YamlValue:
    """A graph file laid over the one that it extends. The `edges` of both follow each other."""
    merged = merge(base, over).fields
    lists = [g.fields["edges"] for g in (base, over) if "edges" in g.fields]
    if len(lists) == 2 and all(isinstance(edges.value, list) for edges in lists):
        both = [*lists[0].items, *lists[1].items]
        merged = {**merged, "edges": YamlValue(both, lists[1].location, lists[1].key_location)}
    nodes = over.fields.get("nodes")
    if nodes is not None and nodes.value is None:  # a graph needs nodes; the problem is there
        merged = {**merged, "nodes": nodes}
    return YamlValue(merged, over.location, over.key_location)


def display_path(path: Path) -> str:
    """A file as messages show it: by its relative path, if it is below the working folder."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A graph file, merged with all that it extends."""

    tree: YamlValue
    files: tuple[Path, ...]  # the one that extends no other comes first
    # Nodes that null removed, each with the files whose edges to it are removed, too.
    removed: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def extended_by(self, over: YamlValue, *files: Path) -> GraphSource:
        """This graph with another one laid over it, which is from these files."""
        removed = {**self.removed, **_removed_nodes(self, over)}
        return GraphSource(merge_graph(self.tree, over), (*self.files, *files), removed)


def read_tree(path: Path) -> GraphSource:
    """Read a graph file and the files that it extends."""
    return _read_with_bases(path, ())


def data_tree(tree: YamlValue) -> GraphSource:
    """Merge plain data with the files that it extends; a relative path in `extends` begins at the working folder."""
    return _merge_with_base(tree, (), ())


def _read_with_bases(path: Path, above: tuple[Path, ...]) -> GraphSource:
    return _merge_with_base(read_yaml(path, display_path(path)), (path,), above)


def _merge_with_base(
    tree: YamlValue, own: tuple[Path, ...], above: tuple[Path, ...]
) -> GraphSource:
    """Merge a graph with what it extends. `own` is its file, if it is from one, and `above` what extends it."""
    if not isinstance(tree.value, dict):
        raise _error(tree, "a graph is a mapping with the keys nodes, edges, …")
    fields = dict(tree.value)
    extends = fields.pop("extends", None)
    tree = YamlValue(fields, tree.location, tree.key_location)
    if extends is None:
        return GraphSource(tree, own)
    chain = (*above, *(path.resolve() for path in own))
    folders = (*(path.parent for path in own), Path())
    return _read_with_bases(_base_file(extends, folders, chain), chain).extended_by(tree, *own)


def _removed_nodes(under: GraphSource, over: YamlValue) -> dict[str, frozenset[str]]:
    """The nodes that a file removes from the graph that it extends."""
    before = under.tree.fields.get("nodes", over).fields
    now = over.fields.get("nodes", YamlValue({}, over.location)).fields
    files = frozenset(map(display_path, under.files))
    return {n: files for n, item in now.items() if item.value is None and n in before}


def _base_file(extends: YamlValue, folders: tuple[Path, ...], chain: tuple[Path, ...]) -> Path:
    """The file that a graph extends, in the first of the folders that has it."""
    if not isinstance(extends.value, str):
        raise _error(extends, "extends: expected the name of one graph")
    base = locate(extends.value, *folders)
    if base is None:
        hint = spelling_hint(extends.value, bundled_graphs())
        raise _error(extends, f"extends: there is no graph '{extends.value}'", hint)
    if base.resolve() in chain:
        names = " -> ".join(p.name for p in [*chain, base])
        raise _error(extends, f"extends: the files extend each other: {names}")
    return base


def _error(item: YamlValue, what: str, hint: str = "") -> GraphError:
    return GraphError([Problem(str(item.location), what, hint)])


class Substitution:
    """Replaces `${name}` by parameters, and remembers which were used."""

    def __init__(self, problems: list[Problem], declared: Container[str] = ()) -> None:
        self.params: dict[str, YamlValue] = {}
        self.declared = declared  # all parameters, those without a value yet included
        self.problems, self.used = problems, set[str]()

    def substitute(self, item: YamlValue) -> YamlValue | None:
        """The item with every `${name}` in it replaced; None, and a problem, where that is not possible."""
        if isinstance(item.value, dict):
            fields = {name: self.substitute(inner) for name, inner in item.value.items()}
            return YamlValue(
                {n: i for n, i in fields.items() if i is not None}, item.location, item.key_location
            )
        if isinstance(item.value, list):
            inner = [self.substitute(i) for i in item.value]
            return YamlValue([i for i in inner if i is not None], item.location, item.key_location)
        if not isinstance(item.value, str) or "${" not in item.value:
            return item
        return self.substitute_text(item, item.value)

    def substitute_text(self, item: YamlValue, text: str) -> YamlValue | None:
        """`${name}` alone becomes the parameter itself; within a text it becomes a piece of the text."""
        names = [name.strip() for name in _PARAM.findall(text)]
        unknown = [name for name in names if not self.is_known(item, name)]
        if unknown:
            return None
        self.used.update(names)
        if whole := _PARAM.fullmatch(text.strip()):
            return YamlValue(self.params[whole[1].strip()].value, item.location, item.key_location)
        for name in names:
            if isinstance(self.params[name].value, dict | list):
                what = f"'${{{name}}}' is not a single value"
                self.problems.append(Problem(str(item.location), what, "use it alone"))
                return None
        return YamlValue(_PARAM.sub(self.text_of, text), item.location, item.key_location)

    def is_known(self, item: YamlValue, name: str) -> bool:
        if name in self.params:
            return True
        if name in self.declared:
            self.used.add(name)
            what = f"'${{{name}}}': '{name}' comes later"
            hint = "a parameter may use those that are written before it"
            self.problems.append(Problem(str(item.location), what, hint))
            return False
        what = f"'${{{name}}}': unknown parameter '{name}'"
        hint = spelling_hint(name, self.params) if self.params else "add it under 'params:'"
        self.problems.append(Problem(str(item.location), what, hint))
        return False

    def text_of(self, found: re.Match[str]) -> str:
        value = self.params[found[1].strip()].value
        assert not isinstance(value, dict | list)
        return value if isinstance(value, str) else scalar_text(value)


def set_value(tree: YamlValue, path: list[str], value: YamlValue) -> YamlValue:
    """The tree with one value set. Mappings on the path are made where they are missing.

    As in `merge`, another type has other parameters, so the old ones go.
    """
    fields = dict(tree.fields)
    name, rest = path[0], path[1:]
    if name == "type" and "type" in fields and fields["type"].value != value.value:
        fields = {}
    if rest:
        below = fields.get(name, YamlValue({}, value.location, value.location))
        value = set_value(as_mapping(below), rest, value)
    fields[name] = YamlValue(value.value, value.location, value.key_location or value.location)
    return YamlValue(fields, tree.location, tree.key_location)
