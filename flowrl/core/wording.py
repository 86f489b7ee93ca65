"""Numbers with their words."""

from __future__ import annotations


def count_text(number: int, one: str) -> str:
    """`1 train iteration`, `2,000 train iterations`."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {one}s"


def limit_reason(number: int, one: str) -> str:
    """Why a limit ends a run; the number as it is written on the command line."""
    return f"1 {one} was asked for" if number == 1 else f"{number} {one}s were asked for"
