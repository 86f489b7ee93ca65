"""Tables in the terminal, with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 80  # characters of a terminal
LEAST_WIDTH = 12  # of a first column that is shortened


def table_lines(rows: Sequence[Sequence[str]], sides: str, width: int | None = None) -> list[str]:
    """The lines of a table. `sides` has an `l` for each column that is aligned to the left; others are to the right.

    If the table is wider than `width`, its first column is shortened.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        left = width - sum(widths[1:]) - 2 * (len(widths) - 1)
        widths[0] = min(widths[0], max(left, LEAST_WIDTH))
    sides = sides.ljust(len(widths), "r")
    return [
        "  ".join(
            _cell(text, size, side) for text, size, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]


def _cell(text: str, width: int, side: str) -> str:
    text = shortened_text(text, width)
    return text.ljust(width) if side == "l" else text.rjust(width)


def shortened_text(text: str, width: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= width:
        return text
    kept = width - 1
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"
