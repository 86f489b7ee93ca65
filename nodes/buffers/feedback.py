"""Priorities that come back from a learner, and the batches that they are of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.ports import AUTO, In

Tokens = Sequence[Batch] | Batch | None  # by hand: one, or none
COUNTED = "free-running: each says that a batch is done; draws stay uniform"
LEARNED = "of the batches of the round before, in their order"


def no_priorities() -> Batch:
    """The initial token: in the first round nothing was learned from yet."""
    return Batch({"priority": np.empty(0, np.float32)})


def priorities_in(about: str) -> In:
    """The port for them."""
    return In("priorities", rate=AUTO, optional=True, initial=no_priorities, about=about)


def listed(tokens: Tokens) -> Sequence[Batch]:
    """The tokens, also where one was given by hand, or none."""
    return [tokens] if isinstance(tokens, Batch) else tokens or ()


def taken(tokens: Tokens, update: Callable[[Array], None]) -> Sequence[Batch]:
    """Update by the priorities of each token that has some; gives the tokens."""
    given = listed(tokens)
    for token in given:
        if len(token):
            update(token["priority"])
    return given


class Outstanding:
    """What was drawn and has no priorities yet, in order."""

    def __init__(self, whose: str, awaited: bool) -> None:
        """Where nobody awaits priorities (by hand), only the newest draw is remembered."""
        self._whose, self._awaited = whose, awaited
        self._drawn: deque[Any] = deque()  # for each batch

    def __len__(self) -> int:
        return len(self._drawn)

    def add(self, batches: Iterable[Any]) -> None:
        """These batches were drawn together."""
        if not self._awaited:
            self._drawn.clear()
        self._drawn.extend(batches)

    def oldest(self) -> Any:
        """The batch whose priorities come now."""
        if not self._drawn:
            raise ValueError(f"{self._whose}: priorities came of a batch that was never drawn")
        return self._drawn.popleft()

    def state(self) -> list[Any]:
        """All, the oldest first."""
        return list(self._drawn)

    def load(self, state: Sequence[Any]) -> None:
        """These instead."""
        self._drawn = deque(state)


def sound_priorities(whose: str, priorities: Array, shape: tuple[int, ...]) -> Array:
    """Priorities as they may be: one a row, finite, not below zero."""
    found = np.asarray(priorities, np.float64)
    if found.shape != shape:
        raise ValueError(
            f"{whose}: priorities of shape {found.shape} came for a batch of {shape[0]} rows; "
            "give one for each row"
        )
    if found.size and not 0 <= found.min() <= found.max() < np.inf:  # nor where one is NaN
        wrong = ~(np.isfinite(found) & (found >= 0))
        row = int(np.argwhere(wrong)[0][0])
        raise ValueError(
            f"{whose}: the priority of row {row} is {found[wrong][0]}; "
            "priorities are finite and from 0"
        )
    return found
