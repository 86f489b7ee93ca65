"""Fires nodes that may fail without ending the run: `on_failure: restart` or `ignore`."""

from __future__ import annotations

from collections.abc import Callable

from flowrl.core.errors import NodeError
from flowrl.runtime.instance import Instance
from flowrl.runtime.records import FailureRecord, Handling
from flowrl.runtime.streams import AwaitedQueue, Queue

MAX_RETRIES = 3  # of one firing, each with a new node


class FailureGuard:
    """Fires an instance. If that fails, a new node retries with the same tokens, or the firing is ignored."""

    def __init__(self, instance: Instance, recreate: Callable[[Instance], None]) -> None:
        self.instance, self._recreate = instance, recreate
        self._fire = instance.fire

    def fire(self) -> None:
        queues = self._filled_queues()
        tokens = [list(queue) for queue in queues]
        for attempt in range(MAX_RETRIES + 1):
            try:
                return self._fire()
            except NodeError as error:
                if error.node != self.instance.key:
                    raise
                handling = self._handling(attempt)
                self._record(FailureRecord(str(error), handling))
                if handling == "stopped":
                    raise
                if handling == "ignored":
                    self.instance.fired += 1
                    return None
            for queue, before in zip(queues, tokens, strict=True):
                queue.clear()
                queue.extend(before)
            self._recreate(self.instance)
        raise AssertionError("the last attempt returns or raises")

    def _filled_queues(self) -> list[Queue]:
        """Return the input queues, which hold all tokens of this firing. So the tokens can be put back."""
        for queues, rate in self.instance.inputs:
            for queue in queues:
                takes = not self.instance.spec.fires_on_any or len(queue) >= rate
                if isinstance(queue, AwaitedQueue) and takes:
                    queue.fill(rate)
        return [queue for queues, _ in self.instance.inputs for queue in queues]

    def _handling(self, attempt: int) -> Handling:
        if self.instance.spec.on_failure == "ignore":
            return "ignored"
        return "retried" if attempt < MAX_RETRIES else "stopped"

    def _record(self, failure: FailureRecord) -> None:
        """Record the failure, and discard the counts and records of the failed firing."""
        instance = self.instance
        instance.discard_records()
        instance.on_record(instance, instance.record_source(), failure)
