"""The priorities that a learner sends back, and the batches that await them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.ports import AUTO, In

# The engine passes a list. Without the engine, one token or None may be passed as well.
PriorityTokens = Sequence[Batch] | Batch | None
COUNTS_BATCHES = "free-running: each token reports a learned batch; draws stay uniform"
SETS_PRIORITIES = "priorities of the batches of the previous round, in their order"


def priorities_port(about: str = SETS_PRIORITIES) -> In:
    """Return the input port for priorities. Its initial token is empty: the first round has no previous batches."""
    return In("priorities", rate=AUTO, optional=True, initial=_empty_token, about=about)


def _empty_token() -> Batch:
    return Batch({"priority": np.empty(0, np.float32)})


class PrioritiesConfig(BaseConfig):
    """The parameters of priorities that every kind of buffer has."""

    beta_iters: int = param(
        100_000, "train iterations until `beta` is 1", ge=1, only_with="priorities"
    )
    priority_least: float = param(
        1e-5,
        "added to each priority, so that every row or sequence can be drawn",
        gt=0,
        only_with="priorities",
    )


def as_tokens(tokens: PriorityTokens) -> Sequence[Batch]:
    return [tokens] if isinstance(tokens, Batch) else tokens or ()


def apply_priorities(tokens: PriorityTokens, update: Callable[[Array], None]) -> Sequence[Batch]:
    """Call `update` with the priorities of each token that has some; return all tokens."""
    sequence = as_tokens(tokens)
    for token in sequence:
        if len(token):
            update(token["priority"])
    return sequence


class PendingBatches:
    """The batches that await priorities, in the order in which they were drawn."""

    def __init__(self, node: str, connected: bool) -> None:
        """Without an edge that brings priorities (`connected`), only the newest draw is kept."""
        self._node, self._connected = node, connected
        self._batches: deque[Any] = deque()

    def add(self, batches: Iterable[Any]) -> None:
        """Add the batches of one draw."""
        if not self._connected:
            self._batches.clear()
        self._batches.extend(batches)

    def pop_oldest(self) -> Any:
        """Remove and return the batch that the next priorities belong to."""
        if not self._batches:
            raise ValueError(f"{self._node}: priorities arrived, but no batch awaits any")
        return self._batches.popleft()

    def check_priorities(self, priorities: Array, shape: tuple[int, ...]) -> Array:
        """Return priorities as float64; refuse another shape, and values that are infinite, NaN or negative."""
        values = np.asarray(priorities, np.float64)
        if values.shape != shape:
            raise ValueError(
                f"{self._node}: the priorities have the shape {values.shape}, the batch has {shape[0]} rows; "
                "give one priority for each row"
            )
        # The comparison is False for NaN as well.
        if values.size and not 0 <= values.min() <= values.max() < np.inf:
            invalid = ~(np.isfinite(values) & (values >= 0))
            row = int(np.argwhere(invalid)[0][0])
            raise ValueError(
                f"{self._node}: the priority of row {row} is {values[invalid][0]}; "
                "priorities must be finite and not negative"
            )
        return values

    def state_dict(self) -> list[Any]:
        return list(self._batches)

    def load_state_dict(self, state: Sequence[Any]) -> None:
        self._batches = deque(state)
