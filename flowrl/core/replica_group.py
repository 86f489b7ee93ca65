"""One replica's view of its group: the replicas of a node that fire together, each with its part of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from flowrl.core.batch import Array

Exchange = Literal["gather", "sum"]


def refuse_exchange(kind: Exchange, value: Any) -> Any:
    """Refuse an exchange outside of a firing, for which other replicas do not wait."""
    raise RuntimeError(
        "a replica can exchange values with its group only while it fires; do it in `fire`"
    )


@dataclass(slots=True)
class ReplicaGroup:
    """The group of one replica.

    All replicas must call the same methods in the same order, in each of their firings: each call returns when all have
    called it.
    """

    replica: int
    size: int
    exchange: Callable[[Exchange, Any], Any] = refuse_exchange  # set by the engine while it fires

    def gather(self, value: Any) -> list[Any]:
        """Return the values that all replicas give, in their order.

        A value is data that a token could be, and does not change afterwards.
        """
        found: list[Any] = self.exchange("gather", value)
        return found

    def sum(self, array: Array) -> Array:
        """Return the sum of arrays of one shape, added in the order of the replicas: the same bits for each of them."""
        found: Array = self.exchange("sum", array)
        return found
