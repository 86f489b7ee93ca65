"""The catalogue as text: all types, and the ports and parameters of one type."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic.fields import FieldInfo

from flowrl.core.config import REQUIRED, Config, field_extras
from flowrl.core.errors import UsageError, shortened_repr, spelling_hint
from flowrl.core.import_paths import without_arguments
from flowrl.core.node import Node
from flowrl.core.ports import In, Link, Out, Port, Service, StateIn, StateOut
from flowrl.core.project_modules import has_module
from flowrl.core.signatures import written_doc
from flowrl.core.text_table import table_lines
from flowrl.core.written_config import written_value
from flowrl.graph.bundled import bundled_graphs, find_bundled
from flowrl.graph.catalogue import Catalogue, MissingModuleError, UnknownTypeError, type_summary
from flowrl.graph.tree import read_tree
from flowrl.graph.yaml_writer import flow_text

_TITLES = {
    In: "Inputs",
    StateIn: "State inputs",
    Link: "Links",
    Out: "Outputs",
    StateOut: "States",
    Service: "Services",
}
_STARS: Mapping[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


def show_catalogue() -> str:
    """All types by kind, each with its summary."""
    catalogue = Catalogue()
    blocks = []
    for kind in sorted(catalogue.kinds(), key=lambda kind: (kind != "node", kind)):
        rows = [(name, type_summary(catalogue.find(kind, name))) for name in catalogue.names(kind)]
        blocks.append("\n".join([_title(kind), *_table(rows)]))
    return "\n\n".join([*blocks, "Ports and parameters of one of them: flowrl nodes NAME"])


def show_graphs() -> str:
    """The bundled graphs, each with the first line of its `about`."""
    rows = []
    for name in bundled_graphs():
        path = find_bundled(name)
        assert path is not None
        text = read_tree(path).tree.fields.get("about")
        rows.append((name, _first_line(str(text.value)) if text is not None else ""))
    return "\n".join(_table(rows, indent=""))


def show_type(name: str) -> str:
    """The ports and parameters of the types of this name, which may be of several kinds."""
    catalogue = Catalogue((Path(),))
    if ":" in name:
        return _show_path(name, catalogue)
    known = {n for kind in catalogue.kinds() for n in catalogue.names(kind)}
    name = _registered_name(name, known)
    kinds = [kind for kind in catalogue.kinds() if name in catalogue.names(kind)]
    if not kinds:
        raise UsageError(f"nodes: there is no type '{name}'; {_type_hint(name, known)}")
    return "\n\n".join(_described(kind, name, catalogue.find(kind, name)) for kind in kinds)


def _show_path(path: str, catalogue: Catalogue) -> str:
    """What a graph names by an import path: a type, or a class or function for a parameter of one."""
    try:
        kind, found = catalogue.find_by_path(path)
    except MissingModuleError as error:
        hint = "install it, or go to the folder that it is in"
        raise UsageError(f"nodes: {error.what}; {hint}") from None
    except UnknownTypeError as error:
        raise UsageError(f"nodes: {error}") from None
    return _described(kind, path, found) if kind else _described_callable(path, found)


def _type_hint(name: str, known: Iterable[str]) -> str:
    module = name.removesuffix(".py")
    if has_module(Path(), module):
        return f"name a class or function of this module: '{module}:Name'"
    return f"{spelling_hint(name, known)} (your own: 'package.module:Class')"


def _registered_name(name: str, known: Iterable[str]) -> str:
    """The registered name, which a reader may write in capitals: `PPO` for `ppo`."""
    return next((other for other in known if other.casefold() == name.casefold()), name)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _title(kind: str) -> str:
    return _plural(kind).capitalize()


def _plural(kind: str) -> str:
    words = kind.replace("_", " ")
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _table(rows: Iterable[tuple[str, ...]], indent: str = "  ") -> list[str]:
    """The lines of a table whose columns are aligned to the left."""
    table = list(rows)
    sides = "l" * max(map(len, table), default=0)
    return [f"{indent}{line}" for line in table_lines(table, sides)]


def _described(kind: str, name: str, cls: type[Any]) -> str:
    blocks = [_heading(name, kind, type_summary(cls), written_doc(cls), cls)]
    if issubclass(cls, Node) and cls.fires_on != "all":
        where = "" if cls.fires_on == "any" else f"with `{cls.fires_on}` it "
        blocks[0].append(f"  {where}fires on any input; it gives at most the rates below")
    if issubclass(cls, Node):
        blocks += _ports(cls.ports)
    if needs := cls.declared_needs():
        blocks.append(["Needs", *_table(needs.items())])
    blocks.append(["Parameters", *(_table(_params(cls.Config)) or ["  none"])])
    return _joined(blocks)


def _described_callable(path: str, found: Any) -> str:
    """A class or function that is no type of flowrl, such as an env, with its arguments."""
    kind = "class" if isinstance(found, type) else "function"
    called = without_arguments(found)
    doc = inspect.cleandoc(called.__doc__ or "")
    heading = _heading(path, kind, _first_line(doc) or "it has no docstring", doc, called)
    where = (
        "no type: graphs name it in a parameter that takes an import path, such as an env's `id`"
    )
    heading.append(f"  {where}")
    return _joined([heading, ["Arguments", *(_table(_arguments(found)) or ["  none"])]])


def _heading(name: str, kind: str, line: str, doc: str, found: Any) -> list[str]:
    """The name with its kind and a line about it, what else its docstring says, and where it is defined."""
    written = inspect.cleandoc(doc).splitlines()
    written = written[1:] if written[:1] == [line] else written
    qualified_name = getattr(found, "__qualname__", type(found).__name__)
    lines = [*written, f"{found.__module__}:{qualified_name}"]
    return [f"{name} ({kind}): {line}", *(f"  {text}".rstrip() for text in lines)]


def _joined(blocks: Iterable[Iterable[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks)


def _arguments(found: Any) -> list[tuple[str, ...]]:
    """Name, type and default of the arguments of a class or function."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # some that are written in C do not say
        return [("unknown",)]
    return [(_argument_name(p), _argument_type(p), _argument_default(p)) for p in parameters]


def _argument_name(p: Parameter) -> str:
    return _STARS.get(p.kind, "") + p.name


def _argument_type(p: Parameter) -> str:
    if p.annotation is Parameter.empty:
        return ""
    return p.annotation if isinstance(p.annotation, str) else type_words(p.annotation)


def _argument_default(p: Parameter) -> str:
    if p.default is not Parameter.empty:
        return f"= {shortened_repr(p.default)}"
    return "" if p.kind in _STARS else "required"


def _ports(ports: Mapping[str, Port]) -> Iterator[list[str]]:
    for kind, title in _TITLES.items():
        rows = [(n, p.type, _port_facts(p)) for n, p in ports.items() if isinstance(p, kind)]
        if rows:
            yield [title, *_table(rows)]


def _port_facts(port: Port) -> str:
    facts = []
    if isinstance(port, In | Out):
        one = port.rate == 1
        facts.append(f"{port.rate} token{'' if one else 's'} a firing")
    if isinstance(port, Service):
        facts.append(", ".join(f"{method}()" for method in port.methods))
        facts += ["one client"] if port.stateful else []
    if isinstance(port, In) and port.initial is not None:
        facts.append("begins with tokens: may close a loop")
    facts += ["optional"] if port.optional else []
    return ", ".join(facts) + (f": {port.about}" if facts and port.about else port.about)


def _params(config: type[Config]) -> Iterator[tuple[str, ...]]:
    """Name, type, default, range, meaning."""
    for name, info in config.model_fields.items():
        extras = field_extras(info)
        kind = str(extras["part"]) if "part" in extras else ""
        kind = f"list of {_plural(str(extras['parts']))}" if "parts" in extras else kind
        kind = f"{_plural(str(extras['named_parts']))} by name" if "named_parts" in extras else kind
        about = info.description or ""
        if section := extras.get("shared"):
            about += f" (default: the section '{section}')"
        if extras.get("phase"):
            about += " (a warm-up may set it)"
        yield name, kind or type_words(info.annotation), _default(info), limits_words(info), about


def _default(info: FieldInfo) -> str:
    extras = field_extras(info)
    value = extras["written"] if "part" in extras else info.default
    return "required" if value is REQUIRED else f"= {flow_text(written_value(value))}"


def type_words(annotation: Any) -> str:
    """A type in short form: `int`, `list[int]`, `copy | blend`, `float | null`."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin is Annotated:
        return type_words(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_words, inner))
    if origin is not None:
        words = ", ".join("…" if a is Ellipsis else type_words(a) for a in inner)
        return f"{getattr(origin, '__name__', origin)}[{words}]"
    if annotation in (None, type(None)):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return annotation.model_config.get("title") or annotation.__name__
    return "any" if annotation is Any else getattr(annotation, "__name__", str(annotation))


def limits_words(info: FieldInfo) -> str:
    """A range: `0 to 1`, `≥ 1`, `> 0, < 1`."""
    found: dict[str, Any] = {}
    for limit in info.metadata:
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "multiple_of"):
            if hasattr(limit, name) and getattr(limit, name) is not None:
                found[name] = getattr(limit, name)
    return ", ".join(_words(found))


def _words(found: dict[str, Any]) -> list[str]:
    if "ge" in found and "le" in found:
        return [f"{found['ge']} to {found['le']}"]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    shown = [f"{signs[n]} {v}" for n, v in found.items() if n in signs]
    if "min_length" in found:
        least = found["min_length"]
        shown.append("not empty" if least == 1 else f"{least} items or more")
    if "max_length" in found:
        shown.append(f"{found['max_length']} items or less")
    if "multiple_of" in found:
        shown.append(f"a multiple of {found['multiple_of']}")
    return shown
