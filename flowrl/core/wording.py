"""Formats numbers with their nouns or units, and lists."""

from __future__ import annotations

from collections.abc import Sequence

MOST_LISTED = 8


def count_text(number: int, one: str) -> str:
    """Format a count: `1 train iteration`, `2,000 train iterations`."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}s"


def with_article(noun: str) -> str:
    """`a policy`, `an env`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def list_text(words: Sequence[object], most: int = MOST_LISTED) -> str:
    """Format a list that may be long: `a, b`, `a, b and 991 more`, `none`."""
    shown = ", ".join(map(str, words[:most])) or "none"
    return f"{shown} and {len(words) - most:,} more" if len(words) > most else shown


def size_text(size: float) -> str:
    """Format a number of bytes with a unit: `1.5 MB`."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
