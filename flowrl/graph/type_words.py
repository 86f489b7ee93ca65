"""A parameter's type and range in words."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal

from pydantic.fields import FieldInfo


def type_words(annotation: Any) -> str:
    """A type as a person writes it: `int`, `list[int]`, `copy | blend`, `float | null`."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_words, inner))
    if origin is not None:
        words = ", ".join("…" if a is Ellipsis else type_words(a) for a in inner)
        return f"{getattr(origin, '__name__', origin)}[{words}]"
    if annotation in (None, type(None)):
        return "null"
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
