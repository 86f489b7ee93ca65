"""What nodes do outside of the run (they write files): held back until no cut can take the firing back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from flowrl.core.context import DeferredEffect
from flowrl.core.errors import NodeError
from flowrl.runtime.instance import RAISED, Instance, Position


class PendingEffect(NamedTuple):
    """One thing to be done."""

    position: Position  # of the firing that wants it
    instance: Instance
    firing: int
    do: Callable[[], None]


class DeferredEffects:
    """All that is held back on one site, in the order of its firings."""

    def __init__(self) -> None:
        self._held: list[PendingEffect] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, position: Position, instance: Instance, record: DeferredEffect) -> None:
        """A firing wants something done."""
        self._held.append(PendingEffect(position, instance, instance.fired, record.do))

    def do(self, counts: Callable[[Position], bool] = lambda position: True) -> None:
        """Do what firings want that are sure to count."""
        held, self._held = self._held, []
        for one in held:
            if counts(one.position):
                _do(one)
            else:
                self._held.append(one)


def _do(held: PendingEffect) -> None:
    """Its time is the node's; what goes wrong ends the run, as others may count on what was done before."""
    instance = held.instance
    began_s = time.perf_counter()
    try:
        held.do()
    except RAISED as error:
        doing = f"what firing {held.firing} does outside of the run"
        raise NodeError(instance.key, doing, error) from error
    took_s = time.perf_counter() - began_s
    instance.busy_s += took_s
    instance.site.last_fired_s += took_s
