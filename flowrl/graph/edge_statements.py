"""Parses the `edges` list: chains become single edges between names. Ports are not known yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flowrl.core.errors import Problems
from flowrl.graph.keywords import EDGE_CHAIN, EDGE_END
from flowrl.graph.yaml_text import SourceLocation, YamlValue

_END = re.compile(EDGE_END)
_CHAIN = re.compile(EDGE_CHAIN)
_ARROW = re.compile(r"(<->|->)")


@dataclass(frozen=True, slots=True)
class EdgeEnd:
    """One end of an edge as it is written: a node, or a port of a node."""

    node: str
    port: str = ""

    def __str__(self) -> str:
        return f"{self.node}.{self.port}" if self.port else self.node


@dataclass(frozen=True, slots=True)
class EdgeStatement:
    """One edge as it is written, or with `removes` the removal of one."""

    arrow: str
    sources: tuple[EdgeEnd, ...]
    to: EdgeEnd
    options: Mapping[str, YamlValue]
    location: SourceLocation
    removes: bool = False

    def within(self, prefix: str) -> EdgeStatement:
        """The same statement with the names that its nodes have in a part-graph."""
        if not prefix:
            return self
        sources = tuple(EdgeEnd(prefix + s.node, s.port) for s in self.sources)
        return replace(self, sources=sources, to=EdgeEnd(prefix + self.to.node, self.to.port))

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.sources))} {self.arrow} {self.to}"


def parse_end(text: str) -> EdgeEnd:
    node, _, port = text.strip().partition(".")
    return EdgeEnd(node, port)


def parse_statements(items: list[YamlValue], problems: Problems) -> Iterator[EdgeStatement]:
    for item in items:
        if isinstance(item.value, str):
            yield from _parse_chain(item.value, {}, item.location, problems)
        elif "from" in item.fields or "to" in item.fields:
            yield from _parse_full(item, problems)
        elif len(item.fields) == 1:
            [(text, options)] = item.fields.items()
            yield from _parse_with_options(text, options, problems)
        else:
            hint = "write 'a -> b', 'a <-> b', 'a -> b: {lag: 1}' or {from: a.port, to: b.port}"
            problems.add(item.location, "edges: this is not an edge", hint)


def _parse_with_options(
    text: str, options: YamlValue, problems: Problems
) -> Iterator[EdgeStatement]:
    """`chain: options`. With null it removes an edge: `chain: null`, `input: null`."""
    location = options.entry_location
    if isinstance(options.value, dict):
        yield from _parse_chain(text, options.value, location, problems)
    elif options.value is not None:
        what = f"edges: the options of '{text}' are not a mapping"
        problems.add(options.location, what, "write {lag: 1}, or null to remove the edge")
    elif "->" in text:
        for statement in _parse_chain(text, {}, location, problems):
            yield replace(statement, removes=True)
    else:
        yield EdgeStatement("->", (), parse_end(text), {}, location, removes=True)


def _parse_chain(
    text: str, options: Mapping[str, YamlValue], location: SourceLocation, problems: Problems
) -> Iterator[EdgeStatement]:
    if not _CHAIN.fullmatch(text):
        hint = "write 'a -> b' or 'a <-> b', ports as 'a.port'"
        problems.add(location, f"edges: '{text}' is not an edge", hint)
        return
    words = _ARROW.split(text)
    ends = [tuple(map(parse_end, word.split(","))) for word in words[::2]]
    if options and len(ends) > 2:
        what = f"edges: the options of '{text}' could mean several edges"
        problems.add(location, what, "write that edge apart")
        return
    for arrow, sources, targets in zip(words[1::2], ends[:-1], ends[1:], strict=True):
        for to in targets:
            yield EdgeStatement(arrow, sources, to, options, location)


def _parse_full(item: YamlValue, problems: Problems) -> Iterator[EdgeStatement]:
    """`{from: a.port, to: b.port, …}`; `from` may be a list, `link: true` makes it a link."""
    fields = dict(item.fields)
    source, to = fields.pop("from", None), fields.pop("to", None)
    if source is None or to is None:
        hint = "{from: a.port, to: b.port}"
        problems.add(item.location, "edges: an edge in full has 'from' and 'to'", hint)
        return
    sources = [
        _checked_end(i) for i in (source.items if isinstance(source.value, list) else [source])
    ]
    target = _checked_end(to)
    for key, ends in (("from", sources), ("to", [target])):
        if not ends or None in ends:
            what = f"edges: '{key}' is not a node or port"
            hint = "write 'node.port'" + (", or a list of them" if key == "from" else "")
            problems.add(item.fields[key].location, what, hint)
    link = fields.pop("link", None)
    if link is not None and not isinstance(link.value, bool):
        problems.add(link.location, f"edges: link is {link.plain()!r}", "expected true or false")
    elif target is not None and sources and None not in sources:
        arrow = "<->" if link is not None and link.value else "->"
        yield EdgeStatement(arrow, tuple(s for s in sources if s), target, fields, item.location)


def _checked_end(item: YamlValue) -> EdgeEnd | None:
    good = isinstance(item.value, str) and _END.fullmatch(item.value.strip())
    return parse_end(str(item.value)) if good else None
