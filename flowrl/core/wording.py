"""Formats numbers with their nouns or units."""

from __future__ import annotations


def count_text(number: int, one: str) -> str:
    """Format a count: `1 train iteration`, `2,000 train iterations`."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}s"


def with_article(noun: str) -> str:
    """`a policy`, `an env`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def size_text(size: float) -> str:
    """Format a number of bytes with a unit: `1.5 MB`."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
