"""The kernels of the sum tree, compiled by numba. They are imported if numba is installed and the tree is large.

Each kernel performs the same additions in the same order as its numpy counterpart in `sum_tree`. The compiled
code is cached in the folder of this file (or in NUMBA_CACHE_DIR), so a machine compiles it once.
"""

from __future__ import annotations

import numba
import numpy as np

from flowrl.core.batch import Array

FAN, FAN_BITS = 8, 3  # children of a node, and its logarithm
BELOW_ONE = 1 - 2.0**-53
UNSIGNED = np.uint64
SET = "void(float64[::1], int64[::1], int64[::1], float64[::1])"
FILL = "void(float64[::1], int64[::1], int64, int64, float64)"
DRAW = (
    "void(float64[::1], int64[::1], float64[::1], Array(float64, 1, 'C', readonly=True), float64, "
    "int64[::1], float64[::1])"
)
FIND = "void(float64[::1], int64[::1], float64[::1], int64[::1])"


@numba.njit([SET], cache=True)
def set_weights(nodes: Array, starts: Array, places: Array, weights: Array) -> None:
    """Set the weights of places, and update the sums above them.

    Places are cast to unsigned integers, because numba checks at each access whether a signed index is negative.
    """
    for i in range(len(places)):
        nodes[UNSIGNED(places[i])] = weights[i]
    for level in range(len(starts) - 1):
        start, above = starts[level], starts[level + 1]
        shift = FAN_BITS * (level + 1)  # a division by a variable is far slower
        last = -1
        for i in range(len(places)):
            parent = places[i] >> shift
            if parent == last:
                continue
            last = parent
            first = UNSIGNED(start + parent * FAN)
            total = nodes[first]
            for k in range(1, FAN):
                total += nodes[first + UNSIGNED(k)]
            nodes[UNSIGNED(above + parent)] = total


@numba.njit([FILL], cache=True)
def fill_weights(nodes: Array, starts: Array, start: int, stop: int, weight: float) -> None:
    """Set one weight for consecutive places, and update the sums above them."""
    for place in range(start, stop):
        nodes[place] = weight
    for level in range(len(starts) - 1):
        below, above = starts[level], starts[level + 1]
        start = start // FAN
        stop = (stop + FAN - 1) // FAN
        for parent in range(start, stop):
            first = below + parent * FAN
            total = nodes[first]
            for k in range(1, FAN):
                total += nodes[first + k]
            nodes[above + parent] = total


@numba.njit([FIND], cache=True)
def find_places(nodes: Array, starts: Array, masses: Array, places: Array) -> None:
    """Find the places at these masses, from the root down. `masses` is overwritten.

    All draws descend one level together and without branches, so the processor can overlap them.
    """
    places[:] = 0
    for level in range(len(starts) - 1, -1, -1):
        for i in range(len(masses)):
            first = UNSIGNED(starts[level] + places[i] * FAN)
            s0 = nodes[first]
            s1 = s0 + nodes[first + UNSIGNED(1)]
            s2 = s1 + nodes[first + UNSIGNED(2)]
            s3 = s2 + nodes[first + UNSIGNED(3)]
            s4 = s3 + nodes[first + UNSIGNED(4)]
            s5 = s4 + nodes[first + UNSIGNED(5)]
            s6 = s5 + nodes[first + UNSIGNED(6)]
            s7 = s6 + nodes[first + UNSIGNED(7)]
            most = s7 * BELOW_ONE
            mass = masses[i] if masses[i] < most else most
            child = (s0 <= mass) + (s1 <= mass) + (s2 <= mass) + (s3 <= mass)
            child += (s4 <= mass) + (s5 <= mass) + (s6 <= mass)
            before = s0 if s0 <= mass else 0.0
            before = s1 if s1 <= mass else before
            before = s2 if s2 <= mass else before
            before = s3 if s3 <= mass else before
            before = s4 if s4 <= mass else before
            before = s5 if s5 <= mass else before
            before = s6 if s6 <= mass else before
            masses[i] = mass - before
            places[i] = places[i] * FAN + child


@numba.njit([DRAW], cache=True)
def draw_places(
    nodes: Array,
    starts: Array,
    points: Array,
    order: Array,
    stratum: float,
    places: Array,
    weights: Array,
) -> None:
    """Draw stratified places, and read their weights. `points`, in [0, 1), is overwritten."""
    rows = len(order)
    for first in range(0, len(points), max(rows, 1)):
        for row in range(rows):
            at = UNSIGNED(first + row)
            points[at] = (order[UNSIGNED(row)] + points[at]) * stratum
    find_places(nodes, starts, points, places)
    for i in range(len(places)):
        weights[i] = nodes[UNSIGNED(places[i])]
