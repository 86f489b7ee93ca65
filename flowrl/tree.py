"""Graph files as trees: `extends` and `${params}`, each value keeping the place that gave it."""

from __future__ import annotations

import re
from pathlib import Path

from flowrl.bundled import bundled_graphs, locate
from flowrl.errors import GraphError, Problem, nearest
from flowrl.yamlfile import Item, read_yaml
from flowrl.yamltext import scalar_text

_PARAM = re.compile(r"\$\{([^{}]*)\}")


def merge(base: Item, over: Item) -> Item:
    """`over` laid over `base`: mappings by key, null removes a name, all else replaces."""
    if isinstance(over.value, dict):
        base = as_mapping(base)
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    old, new = base.value.get("type"), over.value.get("type")
    if old is not None and new is not None and old.value != new.value:
        return over  # another type: the old one's parameters mean nothing to it
    fields = dict(base.value)
    for name, item in over.value.items():
        if item.value is None and name in fields:
            del fields[name]
        elif name in fields:
            fields[name] = merge(fields[name], item)
        else:
            fields[name] = item
    return Item(fields, over.mark, over.key)


def as_mapping(item: Item) -> Item:
    """`policy: random` is short for `policy: {type: random}`."""
    if isinstance(item.value, str):
        return Item({"type": Item(item.value, item.mark)}, item.mark, item.key)
    return item


def merge_graph(base: Item, over: Item) -> Item:
    """A graph file laid over the one it extends: the `edges` of both, one after the other."""
    merged = merge(base, over).fields
    lists = [g.fields["edges"] for g in (base, over) if "edges" in g.fields]
    if len(lists) == 2 and all(isinstance(edges.value, list) for edges in lists):
        both = [*lists[0].items, *lists[1].items]
        merged = {**merged, "edges": Item(both, lists[1].mark, lists[1].key)}
    return Item(merged, over.mark, over.key)


def shown(path: Path) -> str:
    """A file as it is shown in messages: below the working folder by its relative path."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)


def read_tree(path: Path) -> tuple[Item, list[Path]]:
    """The tree of a graph file with all it extends laid under it, and the files that it came from."""
    return _read(path, [])


def _read(path: Path, above: list[Path]) -> tuple[Item, list[Path]]:
    tree = read_yaml(path, shown(path))
    if not isinstance(tree.value, dict):
        raise _wrong(tree, "a graph is a mapping with the keys nodes, edges, …")
    fields = dict(tree.value)
    extends = fields.pop("extends", None)
    tree = Item(fields, tree.mark, tree.key)
    if extends is None:
        return tree, [path]
    here = [*above, path.resolve()]
    under, files = _read(_base(extends, path, here), here)
    return merge_graph(under, tree), [*files, path]


def _base(extends: Item, path: Path, here: list[Path]) -> Path:
    """The file that a graph extends."""
    if not isinstance(extends.value, str):
        raise _wrong(extends, "extends: expected the name of one graph")
    base = locate(extends.value, path.parent, Path())
    if base is None:
        hint = nearest(extends.value, bundled_graphs())
        raise _wrong(extends, f"extends: there is no graph '{extends.value}'", hint)
    if base.resolve() in here:
        names = " -> ".join(p.name for p in [*here, base])
        raise _wrong(extends, f"extends: the files extend each other: {names}")
    return base


def _wrong(item: Item, what: str, hint: str = "") -> GraphError:
    return GraphError([Problem(str(item.mark), what, hint)])


class Substitution:
    """Puts parameters in the place of `${name}`; remembers which were used."""

    def __init__(self, problems: list[Problem]) -> None:
        self.params: dict[str, Item] = {}
        self.problems, self.used = problems, set[str]()

    def item(self, item: Item) -> Item:
        """The item with every `${name}` in it replaced."""
        if isinstance(item.value, dict):
            fields = {k: self.item(v) for k, v in item.value.items()}
            return Item(fields, item.mark, item.key)
        if isinstance(item.value, list):
            return Item([self.item(v) for v in item.value], item.mark, item.key)
        if not isinstance(item.value, str) or "${" not in item.value:
            return item
        return self.text(item, item.value)

    def text(self, item: Item, text: str) -> Item:
        """`${name}` alone is the parameter itself; within a text it is a piece of the text."""
        names = [name.strip() for name in _PARAM.findall(text)]
        if not all([self.known(item, name) for name in names]):
            return Item(None, item.mark, item.key)
        self.used.update(names)
        if whole := _PARAM.fullmatch(text.strip()):
            return Item(self.params[whole[1].strip()].value, item.mark, item.key)
        for name in names:
            if isinstance(self.params[name].value, dict | list):
                what = f"'${{{name}}}' is not a single value"
                self.problems.append(Problem(str(item.mark), what, "use it alone"))
                return Item(None, item.mark, item.key)
        return Item(_PARAM.sub(self.piece, text), item.mark, item.key)

    def known(self, item: Item, name: str) -> bool:
        if name in self.params:
            return True
        what = f"'${{{name}}}': unknown parameter '{name}'"
        hint = nearest(name, self.params) if self.params else "add it under 'params:'"
        self.problems.append(Problem(str(item.mark), what, hint))
        return False

    def piece(self, found: re.Match[str]) -> str:
        value = self.params[found[1].strip()].value
        assert not isinstance(value, dict | list)
        return value if isinstance(value, str) else scalar_text(value)


def put(tree: Item, path: list[str], value: Item) -> Item:
    """The tree with one value set; mappings on the way are made."""
    fields = dict(tree.fields)
    name, rest = path[0], path[1:]
    if rest:
        below = fields.get(name, Item({}, value.mark, value.mark))
        value = put(as_mapping(below), rest, value)
    fields[name] = Item(value.value, value.mark, value.key or value.mark)
    return Item(fields, tree.mark, tree.key)
