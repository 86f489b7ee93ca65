"""The edge language: chains such as `collector -> rnd -> buffer`, and ports found by their type.

An edge is known by the input that it ends in. A later file's edge into the same input replaces an earlier
file's; null removes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.errors import Problem, nearest
from flowrl.graph import Edge, NodeSpec, PortRef
from flowrl.ports import ANY, In, Link, Out, Port, Service, StateIn, StateOut
from flowrl.yamlfile import Item, Mark

OPTIONS: Mapping[
    str, tuple[tuple[str, ...], str]
] = {  # option: the kinds of edge it fits, what it takes
    "lag": (("state",), "a whole number of rounds, 0 or more"),
    "every": (("state",), "a whole number of firings, 1 or more"),
    "latest": (("state",), "true or false"),
    "max_staleness": (("stream", "state"), "a whole number of rounds, 0 or more"),
    "merge": (("stream",), "'order' or 'any'"),
    "capacity": (("stream",), "a whole number of tokens, 1 or more"),
    "when_full": (("stream",), "'wait' or 'drop_oldest'"),
}
_CHOICES = {"merge": ("order", "any"), "when_full": ("wait", "drop_oldest")}
_LEAST = {"lag": 0, "every": 1, "max_staleness": 0, "capacity": 1}

_NAME = r"[A-Za-z_][\w/-]*?(?:\.[A-Za-z_]\w*)?"
_CHAIN = re.compile(rf"\s*{_NAME}(\s*,\s*{_NAME})*(\s*(<->|->)\s*{_NAME}(\s*,\s*{_NAME})*)+\s*")
_ARROW = re.compile(r"\s*(<->|->)\s*")


@dataclass(frozen=True, slots=True)
class End:
    """One end of an edge as it is written: a node, or a port of a node."""

    node: str
    port: str = ""

    def __str__(self) -> str:
        return f"{self.node}.{self.port}" if self.port else self.node


@dataclass(frozen=True, slots=True)
class Statement:
    """One edge as it is written; no sources: the input's edge is removed."""

    arrow: str
    sources: tuple[End, ...]
    to: End
    options: Mapping[str, Item]
    mark: Mark


def end_of(text: str) -> End:
    """`node` or `node.port`."""
    node, _, port = text.strip().partition(".")
    return End(node, port)


class EdgeReader:
    """Turns the `edges` list into statements, and statements into edges between ports."""

    def __init__(
        self,
        nodes: Mapping[str, NodeSpec],
        parts: Mapping[str, Mapping[str, PortRef]],
        broken: set[str],
        problems: list[Problem],
    ) -> None:
        """`parts`: the ports of each part-graph; `broken`: names whose node has a problem that was told already."""
        self.nodes, self.parts, self.broken, self.problems = nodes, parts, broken, problems

    def problem(self, mark: Mark, what: str, hint: str = "") -> None:
        self.problems.append(Problem(str(mark), what, hint))

    # what is written

    def statements(self, items: list[Item]) -> Iterator[Statement]:
        """The edges of a list, chains taken apart."""
        for item in items:
            if isinstance(item.value, str):
                yield from self.chain(item.value, {}, item.mark)
            elif isinstance(item.value, dict) and ("from" in item.value or "to" in item.value):
                yield from self.full(item)
            elif isinstance(item.value, dict) and len(item.value) == 1:
                [(text, options)] = item.value.items()
                yield from self.short(text, options)
            else:
                self.problem(
                    item.mark,
                    "edges: this is not an edge",
                    "write 'a -> b', 'a <-> b', 'a -> b: {lag: 1}' or {from: a.port, to: b.port}",
                )

    def short(self, text: str, options: Item) -> Iterator[Statement]:
        """`chain: options`, or `input: null`."""
        mark = options.at
        if options.value is None:
            if "->" in text:
                for s in self.chain(text, {}, mark):
                    yield Statement(
                        s.arrow, (), s.to, {"from": Item(str(s.sources[0]), mark)}, mark
                    )
            else:
                yield Statement("->", (), end_of(text), {}, mark)
        elif isinstance(options.value, dict):
            yield from self.chain(text, options.value, mark)
        else:
            self.problem(
                options.mark, f"edges: the options of '{text}' are not a mapping", "write {lag: 1}"
            )

    def chain(self, text: str, options: Mapping[str, Item], mark: Mark) -> Iterator[Statement]:
        if not _CHAIN.fullmatch(text):
            self.problem(
                mark,
                f"edges: '{text}' is not an edge",
                "write 'a -> b' or 'a <-> b', ports as 'a.port'",
            )
            return
        words = _ARROW.split(text.strip())
        ends = [tuple(map(end_of, w.split(","))) for w in words[::2]]
        if options and len(ends) > 2:
            self.problem(
                mark,
                f"edges: the options of '{text}' could mean several edges",
                "write that edge apart",
            )
            return
        for arrow, sources, targets in zip(words[1::2], ends, ends[1:], strict=False):
            for to in targets:
                yield Statement(arrow, sources, to, options, mark)

    def full(self, item: Item) -> Iterator[Statement]:
        fields = dict(item.fields)
        to, source = fields.pop("to", None), fields.pop("from", None)
        if to is None or not isinstance(to.value, str) or source is None:
            self.problem(
                item.mark,
                "edges: an edge in full has 'from' and 'to'",
                "{from: a.port, to: b.port}",
            )
            return
        names = (
            [i.value for i in source.items] if isinstance(source.value, list) else [source.value]
        )
        if not names or not all(
            isinstance(n, str) and re.fullmatch(_NAME, n.strip()) for n in names
        ):
            self.problem(
                source.mark,
                "edges: 'from' is not a node or port",
                "write 'node.port', or a list of them",
            )
            return
        link = fields.pop("link", None)
        arrow = "<->" if link is not None and link.value else "->"
        yield Statement(
            arrow, tuple(end_of(str(n)) for n in names), end_of(to.value), fields, item.mark
        )

    # what it means

    def edges(self, statements: Iterable[Statement]) -> list[Edge]:
        """The edges meant: one for each input, later files over earlier ones."""
        found: dict[PortRef, Edge] = {}
        for statement in statements:
            if not statement.sources:
                self.remove(statement, found)
                continue
            edge = self.edge(statement)
            if edge is None:
                continue
            before = found.pop(edge.to, None)
            if before is not None and before.mark.file == edge.mark.file and before.mark.line:
                self.problem(
                    edge.mark,
                    f"edges: the input {edge.to} is fed twice (first at {before.mark})",
                    f"list the sources together: '{before.source.node}, {edge.source.node} -> {edge.to}'",
                )
            found[edge.to] = edge
        return list(found.values())

    def remove(self, statement: Statement, found: dict[PortRef, Edge]) -> None:
        to, source = statement.to, statement.options.get("from")
        inputs = {ref for ref, _, _ in self.ports(to)} if self.known(to) else set()
        gone = [
            ref
            for ref, edge in found.items()
            if ref in inputs
            and (source is None or end_of(str(source.value)).node in {s.node for s in edge.sources})
        ]
        if not gone:
            self.problem(
                statement.mark, f"edges: null removes the edge into '{to}', and there is none"
            )
        for ref in gone:
            del found[ref]

    def edge(self, statement: Statement) -> Edge | None:
        ends = (*statement.sources, statement.to)
        for end in ends:
            if not self.known(end) and end.node not in self.broken:
                names = {*self.nodes, *self.broken, *self.parts}
                self.problem(
                    statement.mark, f"edges: unknown node '{end.node}'", nearest(end.node, names)
                )
        if not all(map(self.known, ends)):
            return None
        pairs = [self.pair(statement, source) for source in statement.sources]
        if any(pair is None for pair in pairs):
            return None
        sources = tuple(p[0] for p in pairs if p)
        targets = {p[1] for p in pairs if p}
        if len(targets) > 1:
            names = ", ".join(sorted(map(str, targets)))
            self.problem(
                statement.mark,
                f"edges: the sources lead to different inputs: {names}",
                "name the port",
            )
            return None
        return self.with_options(statement, sources, targets.pop())

    def known(self, end: End) -> bool:
        if end.node in self.parts:
            return all(ref.node in self.nodes for ref in self.parts[end.node].values())
        return end.node in self.nodes

    def pair(self, statement: Statement, source: End) -> tuple[PortRef, PortRef] | None:
        """The one pair of ports that fits, or a problem that lists the candidates."""
        to, mark = statement.to, statement.mark
        for end in (source, to):
            if not self.ports(end):
                names = [name for _, name, _ in self.ports(End(end.node))]
                self.problem(
                    mark, f"edges: '{end.node}' has no port '{end.port}'", nearest(end.port, names)
                )
                return None
        if statement.arrow == "<->":
            found = self.fits(source, to, link=True) + self.fits(to, source, link=True)
        else:
            found = self.fits(source, to, link=False)
        if len(found) == 1:
            return found[0]
        if found:
            options = " or ".join(f"'{a} {statement.arrow} {b}'" for a, b in found)
            self.problem(
                mark, f"edges: '{source} {statement.arrow} {to}' is ambiguous", f"write {options}"
            )
        else:
            what = f"edges: no output of '{source}' fits an input of '{to}'"
            if statement.arrow == "<->":
                what = f"edges: '{source}' and '{to}' have no link and service that fit"
            self.problem(mark, what, self.candidates(source, to, statement.arrow))
        return None

    def ports(self, end: End) -> list[tuple[PortRef, str, Port]]:
        """The ports that an end may mean, with their names there; a part-graph shows the ones it lists."""
        inner = self.parts.get(end.node)
        if inner is None:
            ports = self.nodes[end.node].cls.ports
            found = [(PortRef(end.node, name), name, port) for name, port in ports.items()]
        else:
            found = [
                (ref, name, self.nodes[ref.node].port(ref.port)) for name, ref in inner.items()
            ]
        return [f for f in found if end.port in ("", f[1])]

    def fits(self, source: End, to: End, link: bool) -> list[tuple[PortRef, PortRef]]:
        """Pairs of ports of one type; optional inputs count only where they are named, and outputs come second."""
        found = [
            (o, i, out.optional)
            for o, _, out in self.ports(source)
            if isinstance(out, Service if link else Out | StateOut)
            for i, _, inp in self.ports(to)
            if isinstance(inp, Link if link else In | StateIn)
            and (to.port or not inp.optional)
            and _compatible(out, inp)
        ]
        required = [(o, i) for o, i, optional in found if not optional]
        return required or [(o, i) for o, i, _ in found]

    def candidates(self, source: End, to: End, arrow: str) -> str:
        def listed(end: End, kinds: Any) -> str:
            ports = self.ports(End(end.node))
            shown = [
                f"{n} ({p.type}{', optional' if p.optional else ''})"
                for _, n, p in ports
                if isinstance(p, kinds)
            ]
            return ", ".join(shown) or "none"

        if arrow == "<->":
            return (
                f"services and links of '{source.node}': {listed(source, Service | Link)}; "
                f"of '{to.node}': {listed(to, Service | Link)}"
            )
        return (
            f"outputs of '{source.node}': {listed(source, Out | StateOut)}; "
            f"inputs of '{to.node}': {listed(to, In | StateIn)}; optional inputs must be named"
        )

    def with_options(
        self, statement: Statement, sources: tuple[PortRef, ...], to: PortRef
    ) -> Edge | None:
        kind = self.nodes[to.node].port(to.port).kind
        if kind == "link" and len(sources) > 1:
            self.problem(
                statement.mark,
                f"edges: the link {to} has one service",
                "write one node before '<->'",
            )
            return None
        if kind == "state" and len(sources) > 1:
            self.problem(
                statement.mark,
                f"edges: the state input {to} has one source",
                "write one node before '->'",
            )
            return None
        options: dict[str, Any] = {}
        for name, item in statement.options.items():
            if self.option(name, item, kind, to):
                options[name] = item.value
        return Edge(kind, sources, to, statement.mark, **options)

    def option(self, name: str, item: Item, kind: str, to: PortRef) -> bool:
        if name not in OPTIONS:
            self.problem(item.at, f"edges: unknown option '{name}'", nearest(name, OPTIONS))
            return False
        kinds, wanted = OPTIONS[name]
        if kind not in kinds:
            fitting = [n for n, (k, _) in OPTIONS.items() if kind in k]
            hint = (
                f"options of a {kind} edge: {', '.join(fitting)}"
                if fitting
                else "a link has no options"
            )
            self.problem(
                item.at,
                f"edges: '{name}' is an option of {' and '.join(kinds)} edges; {to} is a {kind}",
                hint,
            )
            return False
        if not _right(name, item.value):
            self.problem(
                item.mark, f"edges: {to}: {name} is {item.plain()!r}", f"expected {wanted}"
            )
            return False
        return True


def _right(name: str, value: Any) -> bool:
    if name in _CHOICES:
        return value in _CHOICES[name]
    if name == "latest":
        return isinstance(value, bool)
    return isinstance(value, int) and not isinstance(value, bool) and value >= _LEAST[name]


def _compatible(out: Port, inp: Port) -> bool:
    if out.kind != inp.kind:
        return False
    return out.type == inp.type or (out.kind == "stream" and ANY in (out.type, inp.type))
