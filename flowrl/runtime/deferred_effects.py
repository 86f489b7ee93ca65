"""Effects outside the run (`ctx.on_commit`), held until no cut can fall before their firing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from flowrl.core.errors import NodeError
from flowrl.core.records import DeferredEffect
from flowrl.runtime.instance import RAISED, Instance
from flowrl.runtime.site_state import Position


class PendingEffect(NamedTuple):
    """One effect of one firing."""

    position: Position
    instance: Instance
    firing: int
    do: Callable[[], None]


class DeferredEffects:
    """The pending effects of one site, in the order of its firings."""

    def __init__(self) -> None:
        self._pending: list[PendingEffect] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, instance: Instance, record: DeferredEffect) -> None:
        """Hold an effect of the instance's current firing."""
        effect = PendingEffect(instance.position, instance, instance.fired, record.do)
        self._pending.append(effect)

    def commit(self, is_settled: Callable[[Position], bool] = lambda position: True) -> None:
        """Perform the effects of the firings before which no cut can fall."""
        pending, self._pending = self._pending, []
        for effect in pending:
            if is_settled(effect.position):
                _perform(effect)
            else:
                self._pending.append(effect)


def _perform(effect: PendingEffect) -> None:
    """Perform an effect within the node's time. An error ends the run, because later firings may rely on the effect."""
    instance = effect.instance
    start_s = time.perf_counter()
    try:
        effect.do()
    except RAISED as error:
        doing = f"committing an effect of firing {effect.firing}"
        raise NodeError(instance.key, doing, error) from error
    took_s = time.perf_counter() - start_s
    instance.busy_s += took_s
    instance.site.last_fired_s += took_s
