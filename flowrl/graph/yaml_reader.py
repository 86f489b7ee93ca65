"""Reading YAML with positions: text to a tree of items, each of which knows where it was written.

Built from the parser's events: nothing is constructed but mappings, lists and plain scalars (YAML 1.2's core
schema, so that `3e-4` is a number), and depth and size are bounded whatever the file says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flowrl.core.errors import GraphError, Problem

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
    root = _parse(data, name)
    if root is None:
        hint = "a graph has at least 'nodes'; 'flowrl new DIR' makes one"
        raise _wrong(Mark(name), "is empty", hint)
    return root


def _parse(data: bytes | str, name: str) -> Item | None:
    if len(data) > MAX_BYTES:
        raise _wrong(Mark(name), f"is {len(data)} bytes; a graph may have {MAX_BYTES}")
    try:
        # a str is encoded too: words of a command line may hold what is not text
        text = (data.encode() if isinstance(data, str) else data).decode("utf-8-sig")
    except UnicodeError as error:
        where = error.start if isinstance(error, UnicodeDecodeError | UnicodeEncodeError) else 0
        what = f"is not UTF-8 text (byte {where})"
        raise _wrong(Mark(name), what, "save it as UTF-8") from None
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
        item = _parse(text, where) or Item("", Mark(where))
        return item_of(item.plain(), Mark(where))  # a place in a word says nothing
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

    def document(self) -> Item | None:
        root: Item | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise _wrong(
                        self.mark(event), "a second document begins", "a graph is one document"
                    )
            elif isinstance(event, yaml.NodeEvent):
                root = self.item(event, 0)
        return root

    def item(self, event: Any, depth: int, key: Mark | None = None) -> Item:
        mark = self.mark(event)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, mark, depth, key)
        self.grow(1, mark)
        if depth > MAX_DEPTH:
            raise _wrong(mark, f"is nested more than {MAX_DEPTH} deep")
        self.untagged(event, mark)
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

    def untagged(self, event: Any, mark: Mark) -> None:
        if event.tag is not None and event.tag != "!":
            hint = "graphs are plain data; leave the tag out"
            raise _wrong(mark, f"has the tag '{event.tag}'", hint)

    def until(self, end: type) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, end):
                return
            yield event

    def mapping(self, depth: int) -> dict[str, Item]:
        fields: dict[str, Item] = {}
        for event in self.until(yaml.MappingEndEvent):
            mark = self.mark(event)
            name = self.key(event, mark)
            if name in fields:
                first = f"first at {fields[name].key}"
                raise _wrong(mark, f"the key '{name}' stands here twice", first)
            fields[name] = self.item(next(self.events), depth + 1, mark)
        return fields

    def key(self, event: Any, mark: Mark) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise _wrong(mark, "a key must be a word", "put it in quotes if it is meant as text")
        self.untagged(event, mark)
        if event.value == "<<" and event.implicit[0]:
            hint = "use 'extends' or 'params'"
            raise _wrong(mark, "merge keys ('<<') are not part of the format", hint)
        return str(event.value)

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
            return str(event.value)
        try:
            return plain_scalar(event.value)
        except ValueError:
            shown = event.value if len(event.value) < 30 else f"{event.value[:27]}…"
            raise _wrong(mark, f"the number {shown} does not fit into 64 bits") from None


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
    **{sign + word: float("inf") for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


def plain_scalar(text: str) -> Scalar:
    """What an unquoted word means: YAML 1.2's core schema, and 20_000 for 20000."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) or _HEX.fullmatch(text):
        number = int(text, 0 if text[:2] in ("0x", "0o") else 10)
        if not -(2**63) <= number < 2**63:
            raise ValueError(text)
        return number
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
