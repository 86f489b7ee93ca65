"""Graph files as trees: `extends`, `${params}` and `--set`, each value keeping the place that gave it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from flowrl.errors import GraphError, Problem, UsageError, nearest
from flowrl.yamlfile import Item, Mark, read_yaml

Find = Callable[[str], Path | None]  # a bundled graph's name to its file

_PARAM = re.compile(r"\$\{\s*([^}]*?)\s*\}")


def merge(base: Item, over: Item) -> Item:
    """`over` laid over `base`: mappings by key, null removes a name, `edges` follow each other, all else replaces."""
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


def merge_graph(base: Item, over: Item) -> Item:
    """A graph file laid over the one it extends."""
    merged = merge(base, over)
    if isinstance(merged.value, dict):
        edges = [g.fields["edges"] for g in (base, over) if isinstance(g.fields.get("edges"), Item)]
        if len(edges) == 2 and all(isinstance(e.value, list) for e in edges):
            merged.value["edges"] = Item(
                [*edges[0].items, *edges[1].items], edges[1].mark, edges[1].key
            )
    return merged


def locate(name: str, beside: Path | None, find: Find) -> Path | None:
    """The file that a graph's name or path means, first beside the file that names it."""
    for folder in (beside, Path()):
        if folder is not None and (path := folder / name).is_file():
            return path
    return find(name)


def read_graph(name: str, find: Find, bundled: Callable[[], list[str]]) -> tuple[Item, list[Path]]:
    """The tree of a graph with everything it extends laid under it, and the files that it came from."""
    path = locate(name, None, find)
    if path is None:
        hint = (
            ""
            if name.endswith((".yaml", ".yml"))
            else f"; bundled graphs: {nearest(name, bundled())}"
        )
        raise UsageError(f"{name}: there is no such file or bundled graph{hint}")
    return _read(path, shown(path), find, bundled, [])


def shown(path: Path) -> str:
    """A file as it is shown in messages: below the working folder by its relative path."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)


def _read(
    path: Path, name: str, find: Find, bundled: Callable[[], list[str]], above: list[Path]
) -> tuple[Item, list[Path]]:
    tree = read_yaml(path, name)
    if not isinstance(tree.value, dict):
        raise GraphError(
            [Problem(str(tree.mark), "a graph is a mapping with the keys nodes, edges, …")]
        )
    extends = tree.value.pop("extends", None)
    if extends is None:
        return tree, [path]
    here = [*above, path.resolve()]
    if not isinstance(extends.value, str):
        raise GraphError([Problem(str(extends.mark), "extends: expected the name of one graph")])
    base = locate(extends.value, path.parent, find)
    if base is None:
        hint = nearest(extends.value, bundled())
        raise GraphError(
            [Problem(str(extends.mark), f"extends: there is no graph '{extends.value}'", hint)]
        )
    if base.resolve() in here:
        names = " -> ".join(p.name for p in [*here, base])
        raise GraphError(
            [Problem(str(extends.mark), f"extends: the files extend each other: {names}")]
        )
    under, files = _read(base, shown(base), find, bundled, here)
    return merge_graph(under, tree), [*files, path]


def substitute(
    item: Item, params: Mapping[str, Item], problems: list[Problem], used: set[str]
) -> Item:
    """The tree with each `${name}` replaced by the parameter's value."""
    value = item.value
    if isinstance(value, dict):
        fields = {k: substitute(v, params, problems, used) for k, v in value.items()}
        return Item(fields, item.mark, item.key)
    if isinstance(value, list):
        return Item([substitute(v, params, problems, used) for v in value], item.mark, item.key)
    if not isinstance(value, str) or "${" not in value:
        return item
    return _fill(item, value, params, problems, used)


def _fill(
    item: Item, text: str, params: Mapping[str, Item], problems: list[Problem], used: set[str]
) -> Item:
    names = _PARAM.findall(text)
    for name in names:
        if name not in params:
            hint = nearest(name, params) if params else "add it under 'params:'"
            problems.append(
                Problem(str(item.mark), f"'${{{name}}}': unknown parameter '{name}'", hint)
            )
            return Item(None, item.mark, item.key)
    used.update(names)
    whole = _PARAM.fullmatch(text.strip())
    if whole:
        return Item(params[whole[1]].value, item.mark, item.key)
    inner = [n for n in names if isinstance(params[n].value, dict | list)]
    if inner:
        problems.append(
            Problem(str(item.mark), f"'${{{inner[0]}}}' is not a single value", "use it alone")
        )
    return Item(_PARAM.sub(lambda m: str(params[m[1]].value), text), item.mark, item.key)


def put(tree: Item, path: list[str], value: Item) -> Item:
    """The tree with one value set; mappings on the way are made."""
    fields = dict(tree.fields)
    name, rest = path[0], path[1:]
    if rest:
        below = fields.get(name)
        if below is not None and not isinstance(below.value, dict):
            # `policy: dqn` is short for `policy: {type: dqn}`
            below = Item({"type": Item(below.value, below.mark)}, below.mark, below.key)
        value = put(below or Item({}, value.mark, value.mark), rest, value)
    fields[name] = Item(value.value, value.mark, value.key or value.mark)
    return Item(fields, tree.mark, tree.key)


def mark_of(text: str) -> Mark:
    """The place of a value that came from the command line."""
    return Mark(f"--set {text}")
