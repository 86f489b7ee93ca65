"""Reads JSON of files. Whatever is wrong with the text is a ValueError, which says what was expected."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Text that is nested too deeply is a ValueError, too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, not {type(found).__name__}")
    return found
