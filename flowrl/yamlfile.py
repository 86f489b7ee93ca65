"""YAML with positions: text to a tree of items, each of which knows where it was written.

Built from the parser's events: nothing is constructed but mappings, lists and plain scalars (YAML 1.2's core
schema, so that `3e-4` is a number), and depth and size are bounded whatever the file says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from flowrl.errors import GraphError, Problem

MAX_BYTES = 8 << 20
MAX_DEPTH = 50
MAX_ITEMS = 500_000

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, or the words on a command line."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Item:
    """A value with the places of its key and of itself."""

    value: dict[str, Item] | list[Item] | Scalar
    mark: Mark
    key: Mark | None = None

    @property
    def at(self) -> Mark:
        """Where a reader looks first: the key, where there is one."""
        return self.key or self.mark

    @property
    def fields(self) -> dict[str, Item]:
        """The entries of a mapping (empty for anything else)."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Item]:
        """The entries of a list (empty for anything else)."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {k: v.plain() for k, v in self.value.items()}
        if isinstance(self.value, list):
            return [v.plain() for v in self.value]
        return self.value


def item_of(value: Any, mark: Mark, key: Mark | None = None) -> Item:
    """Plain data as items that all stand at one place."""
    if isinstance(value, Mapping):
        return Item({str(k): item_of(v, mark, mark) for k, v in value.items()}, mark, key)
    if isinstance(value, list | tuple):
        return Item([item_of(v, mark) for v in value], mark, key)
    return Item(value, mark, key)


def read_yaml(path: Path, shown: str = "") -> Item:
    """The tree of a file; raises GraphError with the place of what is wrong."""
    name = shown or str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GraphError([Problem(name, f"cannot be read: {error.strerror}")]) from None
    return parse_yaml(data, name)


def parse_yaml(data: bytes | str, name: str) -> Item:
    """The tree of a text; raises GraphError with the place of what is wrong."""
    if len(data) > MAX_BYTES:
        raise _wrong(Mark(name), f"is {len(data)} bytes; a graph may have {MAX_BYTES}")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _wrong(
            Mark(name), f"is not UTF-8 text (byte {error.start})", "save it as UTF-8"
        ) from None
    try:
        return _Builder(name, text).document()
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        mark = Mark(name, at.line + 1, at.column + 1) if at else Mark(name)
        raise _wrong(mark, f"is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise _wrong(Mark(name), f"is not YAML: {first}") from None


def parse_value(text: str, where: str) -> Item:
    """The value of a `--set key=value`."""
    try:
        return parse_yaml(text, where) if text.strip() else Item("", Mark(where))
    except GraphError as error:
        raise GraphError([Problem(where, p.what, p.hint) for p in error.problems]) from None


def _wrong(mark: Mark, what: str, hint: str = "") -> GraphError:
    return GraphError([Problem(str(mark), what, hint)])


class _Builder:
    """Events to items, with every bound checked on the way."""

    def __init__(self, name: str, text: str) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.name = name
        self.events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self.anchors: dict[str, tuple[Item, int]] = {}
        self.count = 0

    def mark(self, event: Any) -> Mark:
        return Mark(self.name, event.start_mark.line + 1, event.start_mark.column + 1)

    def document(self) -> Item:
        root: Item | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise _wrong(
                        self.mark(event), "a second document begins", "a graph is one document"
                    )
            elif isinstance(event, yaml.NodeEvent):
                root = self.item(event, 0)
        if root is None:
            raise _wrong(
                Mark(self.name),
                "is empty",
                "a graph has at least 'nodes'; 'flowrl new DIR' makes one",
            )
        return root

    def item(self, event: Any, depth: int, key: Mark | None = None) -> Item:
        mark = self.mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, mark, depth, key)
        self.grow(1, mark)
        if depth > MAX_DEPTH:
            raise _wrong(mark, f"is nested more than {MAX_DEPTH} deep")
        if event.tag is not None and event.tag != "!":
            raise _wrong(
                mark, f"has the tag '{event.tag}'", "graphs are plain data; leave the tag out"
            )
        before = self.count
        if isinstance(event, yaml.ScalarEvent):
            item = Item(self.scalar(event, mark), mark, key)
        elif isinstance(event, yaml.SequenceStartEvent):
            item = Item(
                [self.item(e, depth + 1) for e in self.until(yaml.SequenceEndEvent)], mark, key
            )
        else:
            item = Item(self.mapping(depth), mark, key)
        if event.anchor:
            self.anchors[event.anchor] = (item, self.count - before + 1)
        return item

    def until(self, end: type) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, end):
                return
            yield event

    def mapping(self, depth: int) -> dict[str, Item]:
        fields: dict[str, Item] = {}
        for event in self.until(yaml.MappingEndEvent):
            mark = self.mark(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise _wrong(
                    mark, "a key must be a word", "put it in quotes if it is meant as text"
                )
            if event.value == "<<" and event.implicit[0]:
                raise _wrong(
                    mark,
                    "merge keys ('<<') are not part of the format",
                    "use 'extends' or 'params'",
                )
            if event.value in fields:
                raise _wrong(
                    mark,
                    f"the key '{event.value}' stands here twice",
                    f"first at {fields[event.value].key}",
                )
            fields[event.value] = self.item(next(self.events), depth + 1, mark)
        return fields

    def alias(self, event: Any, mark: Mark, depth: int, key: Mark | None) -> Item:
        if event.anchor not in self.anchors:
            raise _wrong(mark, f"there is no finished anchor '&{event.anchor}' before this")
        item, size = self.anchors[event.anchor]
        self.grow(size, mark)
        if depth + _height(item) > MAX_DEPTH:
            raise _wrong(mark, f"is nested more than {MAX_DEPTH} deep")
        return Item(item.value, mark, key)

    def grow(self, items: int, mark: Mark) -> None:
        self.count += items
        if self.count > MAX_ITEMS:
            raise _wrong(
                mark, f"the file has more than {MAX_ITEMS} values (aliases counted in full)"
            )

    def scalar(self, event: Any, mark: Mark) -> Scalar:
        if event.style is not None and event.style != "":
            return cast(str, event.value)
        try:
            return plain_scalar(event.value)
        except ValueError:
            raise _wrong(mark, "is a number of too many digits") from None


def _height(item: Item) -> int:
    inner = item.fields.values() if isinstance(item.value, dict) else item.items
    return 1 + max(map(_height, inner), default=0)


_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_HEX = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN"), float("nan")),
}


def plain_scalar(text: str) -> Scalar:
    """What an unquoted word means: YAML 1.2's core schema, and 20_000 for 20000."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


_SAFE = re.compile(r"[A-Za-z_./][\w./+-]*( (->|<->|[\w./+(),-]+))*")


def scalar_text(value: Scalar) -> str:
    """A scalar as YAML text that reads back as the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    if isinstance(value, int):
        return str(value)
    if _SAFE.fullmatch(value) and plain_scalar(value) == value and value.lower() not in _AMBIGUOUS:
        return value
    return json.dumps(value, ensure_ascii=False)


_AMBIGUOUS = frozenset({"yes", "no", "on", "off", "y", "n"})


def flow_text(value: Any) -> str:
    """Plain data on one line of YAML."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{scalar_text(str(k))}: {flow_text(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow_text, value)) + "]"
    text = scalar_text(value)
    return (
        json.dumps(value)
        if isinstance(value, str) and text == value and ("," in value or " " in value)
        else text
    )
