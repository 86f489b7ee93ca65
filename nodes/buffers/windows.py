"""Windows of steps: where a table's episodes lie, and which unrolls are cut out of them."""

from __future__ import annotations

import numpy as np

from flowrl.core.batch import Array


def segments(last: Array) -> tuple[Array, Array]:
    """Begins and ends (S,) of the runs of rows that follow each other; `last` (n,) ends one."""
    ends = np.flatnonzero(last) + 1
    if len(last) and not last[-1]:
        ends = np.append(ends, len(last))
    return np.append(0, ends[:-1])[: len(ends)], ends


def windows(last: Array, steps: int, period: int) -> tuple[Array, Array]:
    """First rows and lengths (W,) of windows of `steps` rows, one every `period` rows.

    None goes beyond its segment: the last one of a segment lies at its end, whatever the period,
    and a segment that is shorter gives one window that is shorter.
    """
    found = []
    for begin, end in zip(*segments(last), strict=True):
        latest = max(begin, end - steps)
        starts = np.arange(begin, latest + 1, period)
        found.append(starts if starts[-1] == latest else np.append(starts, latest))
    firsts = np.concatenate(found) if found else np.empty(0, np.int64)
    _, ends = segments(last)
    limit = ends[np.searchsorted(ends, firsts, side="right")] if len(ends) else firsts
    return firsts, np.minimum(limit - firsts, steps)


def within(firsts: Array, lengths: Array, steps: int) -> tuple[Array, Array]:
    """Rows (W, steps) of windows, and which are real: behind a short one's end its last is repeated."""
    offset = np.arange(steps)
    rows = firsts[:, None] + np.minimum(offset, lengths[:, None] - 1)
    return rows, offset < lengths[:, None]


def of_sequences(priorities: Array, valid: Array, eta: float) -> Array:
    """eta max_t p_t + (1 - eta) mean_t p_t over a sequence's real steps (Kapturowski et al. 2019)."""
    # (W, T) to (W,)
    counted = np.where(valid, priorities, 0.0)
    mean = counted.sum(1) / np.maximum(valid.sum(1), 1)
    return eta * counted.max(1) + (1 - eta) * mean
