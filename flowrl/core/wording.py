"""Formats numbers with their nouns or units, and lists."""

from __future__ import annotations

from collections.abc import Sequence

MOST_LISTED = 8
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def count_text(number: int, one: str, several: str = "") -> str:
    """Format a count: `1 train iteration`, `2,000 train iterations`; `several` is an irregular plural."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {several or f'{one}s'}"


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


def short_number(value: float | None) -> str:
    """A number with a unit, such as `1.5k`."""
    if value is None:
        return ""
    for size, unit in UNITS:
        if value >= 10 * size:
            return f"{value / size:.0f}{unit}"
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def clock_text(seconds: float) -> str:
    """Seconds as minutes and seconds, or with hours: `1:05`, `2:00:00`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
