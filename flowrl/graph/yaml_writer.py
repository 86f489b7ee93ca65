"""Writes plain data as YAML on one line, which reads back as the same data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from flowrl.graph.yaml_text import Scalar, plain_scalar, plain_value

_PLAIN = re.compile(
    r"[A-Za-z_./][A-Za-z0-9_./+-]*(:[A-Za-z_]\w*)?( (->|<->|[A-Za-z0-9_./+(),-]+))*", re.ASCII
)
# Other YAML readers take these for booleans.
_AMBIGUOUS = frozenset({"yes", "no", "on", "off", "y", "n"})
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def scalar_text(value: Scalar) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value)) or _float_text(
            value
        )
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not plain data, so YAML cannot express it")
    return value if _is_plain(value) else _quoted(value)


def _float_text(value: float) -> str:
    """A finite float that does not read back as a whole number: 1.0e+16."""
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")


def flow_text(value: Any) -> str:
    """Plain data as YAML on one line."""
    value = plain_value(value)
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
    """A text in double quotes, with unprintable characters as escapes."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
