"""Reads YAML into values that know their file, line and column.

The reader builds a tree of `YamlValue` from the parser's events. It constructs nothing but mappings, lists and plain
scalars (YAML 1.2's core schema, so that `3e-4` is a number), and it bounds depth and size whatever the file contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from flowrl.core.errors import GraphError, Problem

MAX_BYTES = 8 << 20
MAX_DEPTH = 50
MAX_ITEMS = 500_000

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A position in a file, or the argument of the command line that gave a value."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class YamlValue:
    """A value, with the locations of its key and of itself."""

    value: dict[str, YamlValue] | list[YamlValue] | Scalar
    location: SourceLocation
    key_location: SourceLocation | None = None

    @property
    def entry_location(self) -> SourceLocation:
        """Where the entry begins: the location of the key, if there is one."""
        return self.key_location or self.location

    @property
    def fields(self) -> dict[str, YamlValue]:
        """The entries of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[YamlValue]:
        """The entries of a list; empty for anything else."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:
        """The value as plain data, without locations."""
        if isinstance(self.value, dict):
            return {k: v.plain() for k, v in self.value.items()}
        if isinstance(self.value, list):
            return [v.plain() for v in self.value]
        return self.value


def item_of(value: Any, location: SourceLocation, key: SourceLocation | None = None) -> YamlValue:
    """Plain data as a tree whose values all have one location."""
    value = plain_value(value)
    if isinstance(value, Mapping):
        return YamlValue(
            {str(k): item_of(v, location, location) for k, v in value.items()}, location, key
        )
    if isinstance(value, list | tuple):
        return YamlValue([item_of(v, location) for v in value], location, key)
    return YamlValue(value, location, key)


def keys_of(path: str) -> list[str]:
    """The keys of a path such as `env.id`, `opponents[1].lr` or `explore.0.share`."""
    return path.replace("[", ".").replace("]", "").split(".")


def item_at(item: YamlValue, path: str) -> YamlValue | None:
    """The item at a path below another one; None if it is not written."""
    found: YamlValue | None = item
    for key in keys_of(path):
        if found is None:
            return None
        items = dict(enumerate(found.items))
        found = items.get(int(key)) if key.isdecimal() and items else found.fields.get(key)
    return found


def with_item(item: YamlValue, keys: Sequence[str], new: YamlValue) -> YamlValue:
    """A mapping with another item at a path of keys."""
    if not keys:
        return new
    below = item.fields.get(keys[0]) or YamlValue({}, item.location)
    fields = {**item.fields, keys[0]: with_item(below, keys[1:], new)}
    return YamlValue(fields, item.location, item.key_location)


def read_yaml(path: Path, shown: str = "") -> YamlValue:
    """The tree of a file. Raises GraphError, with the location, where it is invalid."""
    name = shown or str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GraphError([Problem(name, f"cannot be read: {error.strerror}")]) from None
    return parse_yaml(data, name)


def parse_yaml(data: bytes | str, name: str) -> YamlValue:
    """The tree of a text. Raises GraphError, with the location, where it is invalid."""
    root = _parse(data, name)
    if root is None:
        hint = "a graph has at least 'nodes'; 'flowrl new DIR' makes one"
        raise _error(SourceLocation(name), "is empty", hint)
    return root


def _parse(data: bytes | str, name: str) -> YamlValue | None:
    if len(data) > MAX_BYTES:
        raise _error(SourceLocation(name), f"is {len(data)} bytes; a graph may have {MAX_BYTES}")
    try:
        # A str is encoded as well, because arguments of a command line may contain bytes that are no text.
        text = (data.encode() if isinstance(data, str) else data).decode("utf-8-sig")
    except UnicodeError as error:
        where = error.start if isinstance(error, UnicodeDecodeError | UnicodeEncodeError) else 0
        what = f"is not UTF-8 text (byte {where})"
        raise _error(SourceLocation(name), what, "save it as UTF-8") from None
    try:
        return _Builder(name, text).build_document()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(name, text, error) from None
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise _error(SourceLocation(name), f"is not YAML: {first}") from None


def parse_value(text: str, where: str) -> YamlValue:
    """The value of a `--set key=value`."""
    try:
        item = _parse(text, where) or YamlValue("", SourceLocation(where))
        # Line and column within an argument would mean nothing.
        return item_of(item.plain(), SourceLocation(where))
    except GraphError as error:
        raise GraphError([Problem(where, p.what, p.hint) for p in error.problems]) from None


def _error(location: SourceLocation, what: str, hint: str = "") -> GraphError:
    return GraphError([Problem(str(location), what, hint)])


def _syntax_error(name: str, text: str, error: yaml.MarkedYAMLError) -> GraphError:
    """What is wrong with a text that is not YAML. The parser's own words are kept where they are clear."""
    at = error.problem_mark or error.context_mark
    if at is None:
        return _error(SourceLocation(name), f"is not YAML: {error.problem or error.context}")
    location = SourceLocation(name, at.line + 1, at.column + 1)
    lines = text.splitlines()
    rest = lines[at.line][at.column :] if at.line < len(lines) else ""
    problem = str(error.problem or error.context)
    if rest.startswith("\t"):
        return _error(location, "a tab begins this line", "tabs cannot indent; use spaces")
    if problem == "found character that cannot start any token":
        return _error(location, f"a text cannot begin with '{rest[:1]}'", "put it in quotes")
    if problem == "mapping values are not allowed in this context":
        hint = "indent the line as those beside it, or put a text with ': ' in quotes"
        return _error(location, "a ':' is not expected here", hint)
    begun = error.context_mark
    where = f"{error.context} from line {begun.line + 1}" if begun and begun.line < at.line else ""
    return _error(location, f"is not YAML: {problem}", where)


class _Builder:
    """Turns parser events into values, and checks every bound on the way."""

    def __init__(self, name: str, text: str) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.name = name
        self.events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self.anchors: dict[str, tuple[YamlValue, int]] = {}
        self.count = 0

    def location(self, event: Any) -> SourceLocation:
        return SourceLocation(self.name, event.start_mark.line + 1, event.start_mark.column + 1)

    def build_document(self) -> YamlValue | None:
        root: YamlValue | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise _error(
                        self.location(event), "a second document begins", "a graph is one document"
                    )
            elif isinstance(event, yaml.NodeEvent):
                root = self.build_value(event, 0)
        return root

    def build_value(self, event: Any, depth: int, key: SourceLocation | None = None) -> YamlValue:
        location = self.location(event)
        if isinstance(event, yaml.AliasEvent):
            return self.build_alias(event, location, depth, key)
        self.count_values(1, location)
        if depth > MAX_DEPTH:
            raise _error(location, f"is nested more than {MAX_DEPTH} deep")
        self.refuse_tag(event, location)
        before = self.count
        if isinstance(event, yaml.ScalarEvent):
            item = YamlValue(self.read_scalar(event, location), location, key)
        elif isinstance(event, yaml.SequenceStartEvent):
            item = YamlValue(
                [self.build_value(e, depth + 1) for e in self.events_until(yaml.SequenceEndEvent)],
                location,
                key,
            )
        else:
            item = YamlValue(self.build_mapping(depth), location, key)
        if event.anchor:
            self.anchors[event.anchor] = (item, self.count - before + 1)
        return item

    def refuse_tag(self, event: Any, location: SourceLocation) -> None:
        if event.tag is not None and event.tag != "!":
            hint = "graphs are plain data; leave the tag out"
            raise _error(location, f"has the tag '{event.tag}'", hint)

    def events_until(self, end: type) -> Iterator[Any]:
        for event in self.events:
            if isinstance(event, end):
                return
            yield event

    def build_mapping(self, depth: int) -> dict[str, YamlValue]:
        fields: dict[str, YamlValue] = {}
        for event in self.events_until(yaml.MappingEndEvent):
            location = self.location(event)
            name = self.read_key(event, location)
            if name in fields:
                first = f"first at {fields[name].key_location}"
                raise _error(location, f"the key '{name}' is written twice", first)
            fields[name] = self.build_value(next(self.events), depth + 1, location)
        return fields

    def read_key(self, event: Any, location: SourceLocation) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise _error(
                location, "a key must be a word", "put it in quotes if it is meant as text"
            )
        self.refuse_tag(event, location)
        if event.value == "<<" and event.implicit[0]:
            hint = "use 'extends' or 'params'"
            raise _error(location, "merge keys ('<<') are not part of the format", hint)
        return str(event.value)

    def build_alias(
        self, event: Any, location: SourceLocation, depth: int, key: SourceLocation | None
    ) -> YamlValue:
        if event.anchor not in self.anchors:
            raise _error(location, f"there is no finished anchor '&{event.anchor}' before this")
        item, size = self.anchors[event.anchor]
        self.count_values(size, location)
        if depth + _height(item) > MAX_DEPTH:
            raise _error(location, f"is nested more than {MAX_DEPTH} deep")
        return YamlValue(item.value, location, key)

    def count_values(self, items: int, location: SourceLocation) -> None:
        self.count += items
        if self.count > MAX_ITEMS:
            raise _error(
                location, f"the file has more than {MAX_ITEMS} values (aliases counted in full)"
            )

    def read_scalar(self, event: Any, location: SourceLocation) -> Scalar:
        if event.style is not None and event.style != "":
            return str(event.value)
        try:
            return plain_scalar(event.value)
        except ValueError:
            shown = event.value if len(event.value) < 30 else f"{event.value[:27]}…"
            raise _error(location, f"the number {shown} does not fit into 64 bits") from None


def _height(item: YamlValue) -> int:
    inner = item.fields.values() if isinstance(item.value, dict) else item.items
    return 1 + max(map(_height, inner), default=0)


_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_HEX = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# People write 1e5 for whole numbers.
_POWER = re.compile(r"([-+]?[0-9]+)[eE]\+?(0?[0-9]|1[0-9])")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{sign + word: float("inf") for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


def plain_scalar(text: str) -> Scalar:
    """The value of an unquoted word: YAML 1.2's core schema, with 20_000 and 2e4 for 20000."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) or _HEX.fullmatch(text):
        number = int(text, 0 if text[:2] in ("0x", "0o") else 10)
        if not _MIN_INT <= number <= _MAX_INT:
            raise ValueError(text)
        return number
    if found := _POWER.fullmatch(text):
        number = int(found[1]) * 10 ** int(found[2])
        return number if _MIN_INT <= number <= _MAX_INT else float(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def plain_value(value: Any) -> Any:
    """The plain data that a value of Python stands for: numbers and arrays of numpy and torch, and paths."""
    if isinstance(value, PurePath):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value
