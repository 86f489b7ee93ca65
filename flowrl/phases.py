"""The `warmup` section: what comes before round 0."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from flowrl.config import REQUIRED
from flowrl.errors import nearest
from flowrl.graph import Graph, Phase, PortRef
from flowrl.yamlfile import Item, Mark

KEYS = ("edges", "steps", "rounds", "set")

_ARROW = re.compile(r"\s*->\s*")


class Reader(Protocol):
    """What the graph's loader lends."""

    def problem(self, mark: Mark, what: str, hint: str = "") -> None:
        """Note a problem."""

    def setting_of(self, item: Item, node: str, key: str) -> Any:
        """The value of a setting, checked against the node's parameter."""


def read_phases(
    item: Item,
    graph: Graph,
    parts: Mapping[str, Mapping[str, PortRef]],
    broken: set[str],
    reader: Reader,
) -> list[Phase]:
    """The phases of a graph."""
    if not isinstance(item.value, list):
        reader.problem(
            item.mark,
            "warmup: expected a list of phases",
            "warmup: [{edges: [a -> b], steps: 1000}]",
        )
        return []
    known = {*graph.nodes, *parts, *broken}
    found = [_phase(entry, known, parts, broken, reader) for entry in item.items]
    return [phase for phase in found if phase is not None]


def _phase(
    item: Item, known: set[str], parts: Mapping[str, Any], broken: set[str], reader: Reader
) -> Phase | None:
    if not isinstance(item.value, dict):
        reader.problem(
            item.mark, "warmup: expected a phase", "{edges: [collector -> buffer], steps: 1000}"
        )
        return None
    for name in item.value.keys() - set(KEYS):
        reader.problem(item.value[name].at, f"warmup: unknown key '{name}'", nearest(name, KEYS))
    paths = _paths(item, known, parts, reader)
    lengths = {k: _length(item.value[k], k, reader) for k in ("steps", "rounds") if k in item.value}
    if len(lengths) != 1:
        reader.problem(item.mark, "warmup: a phase has a length", "give either 'steps' or 'rounds'")
        return None
    if None in lengths.values() or not paths:
        return None
    settings = _settings(item.fields.get("set"), known, broken, reader)
    return Phase(tuple(paths), item.mark, settings=settings, written=item.plain(), **lengths)


def _members(name: str, known: set[str], parts: Mapping[str, Any]) -> tuple[str, ...]:
    if name not in parts:
        return (name,)
    return tuple(sorted(n for n in known if n.startswith(f"{name}/") and n not in parts))


def _paths(
    item: Item, known: set[str], parts: Mapping[str, Any], reader: Reader
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    edges = item.fields.get("edges", Item([], item.mark))
    if not isinstance(edges.value, list) or not edges.items:
        reader.problem(
            edges.mark, "warmup: a phase lists its active edges", "edges: [collector -> buffer]"
        )
    found = []
    for entry in edges.items:
        text = entry.value.strip() if isinstance(entry.value, str) else ""
        ends = [[n.strip().partition(".")[0] for n in end.split(",")] for end in _ARROW.split(text)]
        if len(ends) < 2:
            reader.problem(
                entry.mark, f"warmup: {entry.plain()!r} is not an edge", "write 'a -> b'"
            )
            continue
        for name in (n for end in ends for n in end if n not in known):
            reader.problem(entry.mark, f"warmup: unknown node '{name}'", nearest(name, known))
        groups = [
            tuple(m for n in end if n in known for m in _members(n, known, parts)) for end in ends
        ]
        found += [(a, b) for a, b in zip(groups, groups[1:], strict=False) if a and b]
    return found


def _length(item: Item, key: str, reader: Reader) -> int | None:
    if isinstance(item.value, int) and not isinstance(item.value, bool) and item.value >= 0:
        return item.value
    reader.problem(
        item.mark, f"warmup.{key} is {item.plain()!r}", "expected a whole number, 0 or more"
    )
    return None


def _settings(
    item: Item | None, known: set[str], broken: set[str], reader: Reader
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    if item is not None and not isinstance(item.value, dict):
        reader.problem(
            item.mark, "warmup.set: expected a mapping", "set: {collector.policy: random}"
        )
    for path, value in (item.fields if item else {}).items():
        node, _, key = path.partition(".")
        if node not in known:
            reader.problem(value.at, f"warmup: unknown node '{node}'", nearest(node, known))
        elif not key:
            reader.problem(
                value.at, f"warmup.set: '{path}' names no parameter", f"write '{node}.PARAMETER'"
            )
        elif node not in broken:
            setting = reader.setting_of(value, node, key)
            if setting is not REQUIRED:
                found.setdefault(node, {})[key] = setting
    return found
