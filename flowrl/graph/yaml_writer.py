"""Writing YAML: plain data as text that reads back as the same data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from flowrl.graph.yaml_reader import Scalar, plain_scalar

_PLAIN = re.compile(
    r"[A-Za-z_./][A-Za-z0-9_./+-]*(:[A-Za-z_]\w*)?( (->|<->|[A-Za-z0-9_./+(),-]+))*", re.ASCII
)
_AMBIGUOUS = frozenset({"yes", "no", "on", "off", "y", "n"})  # booleans to other readers of YAML
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def scalar_text(value: Scalar) -> str:
    """A scalar as YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    if isinstance(value, int):
        return str(value)
    return value if _is_plain(value) else _quoted(value)


def flow_text(value: Any) -> str:
    """Plain data on one line."""
    if isinstance(value, Mapping):
        pairs = (f"{flow_text(str(k))}: {flow_text(v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow_text, value)) + "]"
    if isinstance(value, str) and ("," in value or " " in value):
        return _quoted(value)
    return scalar_text(value)


def _is_plain(text: str) -> bool:
    if text.lower() in _AMBIGUOUS or not _PLAIN.fullmatch(text):
        return False
    return isinstance(plain_scalar(text), str)


def _quoted(text: str) -> str:
    """In double quotes; what a file may not hold as such, by its number."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
