"""What the replicas of a group exchange while they fire together.

The order of a sum is part of its result, because floating-point addition is not associative. Sums are added in the
order of the replicas, so that they have the same bits wherever the replicas live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.core.batch import Array


class GroupExchange:
    """The exchange of a group from one site. This class serves a group whose replicas all live on this site."""

    def gather(self, given: Mapping[int, Any]) -> list[Any]:
        """Return the values of all replicas in order. `given` are those of this site, by replica."""
        return [given[replica] for replica in sorted(given)]

    def sum(self, given: Mapping[int, Array]) -> Array:
        """Return the sum of the arrays of all replicas, which is a new array."""
        return added_in_order(self.gather(given))


def added_in_order(arrays: Sequence[Array]) -> Array:
    """Return the sum of arrays of one shape, from the first to the last."""
    kinds = [(array.dtype.str, array.shape) for array in arrays]
    if kinds != kinds[:1] * len(kinds):
        texts = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
        raise ValueError(f"the replicas of a group give different arrays to a sum: {texts}")
    total: Array = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
