"""Rows in the order of time: each is followed by its successor, except where `last` is set."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from flowrl.core.batch import Array, Batch

LAST = "last"


def with_marked_end(rows: Batch) -> Batch:
    """Return the rows of a token that was cut off: no row follows the final one, so its `last` is set."""
    if LAST not in rows or not len(rows) or rows[LAST][-1].flat[-1]:
        return rows
    last = rows[LAST].copy()
    last.reshape(len(last), -1)[-1, -1] = True  # of an unroll, that of its final step
    return rows.replace(last=last)


def split_rows(rows: Batch, count: int, in_order: bool) -> list[Batch]:
    """Return `count` consecutive parts of about equally many rows, one for each replica of a group.

    Where rows must be in the order of time (`in_order`), a part ends with a row whose `last` is set, if there is one
    within half a part of the equal share. If there is none, the part ends there nevertheless, and `last` is set.
    """
    if len(rows) < count:
        raise ValueError(
            f"a batch of {len(rows)} rows cannot be split among {count} replicas; expected a row for each of them; "
            "give batches of more rows, or fewer replicas"
        )
    if not in_order or LAST not in rows:
        return [rows.take(slice(*ends)) for ends in pairwise(_equal_ends(len(rows), count))]
    ends = [0, *_ends_in_order(rows[LAST], count), len(rows)]
    return [with_marked_end(rows.take(slice(*two))) for two in pairwise(ends)]


def _equal_ends(rows: int, count: int) -> list[int]:
    return [rows * k // count for k in range(count + 1)]


def _ends_in_order(last: Array, count: int) -> Iterator[int]:
    """Yield the end of each part but the final one."""
    allowed = np.flatnonzero(last.reshape(len(last), -1)[:, -1]) + 1
    for wanted in _equal_ends(len(last), count)[1:-1]:
        near = allowed[2 * count * np.abs(allowed - wanted) < len(last)]
        yield int(near[np.argmin(np.abs(near - wanted))]) if len(near) else wanted
