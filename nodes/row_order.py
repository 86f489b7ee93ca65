"""Rows in the order of time: each is followed by its successor, except where `last` is set."""

from __future__ import annotations

from flowrl.core.batch import Batch

LAST = "last"


def with_marked_end(rows: Batch) -> Batch:
    """The rows of a token that was cut off: no row follows the final one, so its `last` is set."""
    if LAST not in rows or not len(rows) or rows[LAST][-1].flat[-1]:
        return rows
    last = rows[LAST].copy()
    last.reshape(len(last), -1)[-1, -1] = True  # of an unroll, that of its final step
    return rows.replace(last=last)
