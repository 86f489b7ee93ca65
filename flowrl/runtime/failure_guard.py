"""Fires nodes whose failures the graph allows: `on_failure: restart` or `ignore`."""

from __future__ import annotations

from collections.abc import Callable

from flowrl.core.errors import NodeError
from flowrl.runtime.instance import Instance
from flowrl.runtime.records import FailureRecord, Handling
from flowrl.runtime.streams import AwaitedQueue, Queue

RETRIES = 3  # of one firing, each with a fresh node


class FailureGuard:
    """Fires an instance. Where that fails, a fresh node tries again with the same tokens, or the firing is ignored."""

    def __init__(self, instance: Instance, renew: Callable[[Instance], None]) -> None:
        self.instance, self._renew = instance, renew
        self._fire = instance.fire

    def fire(self) -> None:
        queues = self._filled_queues()
        tokens = [list(queue) for queue in queues]
        for attempt in range(RETRIES + 1):
            try:
                return self._fire()
            except NodeError as error:
                if error.node != self.instance.key:
                    raise
                handling = self._handling(attempt)
                self._record(FailureRecord(str(error), handling))
                if handling == "given up":
                    raise
                if handling == "passed over":
                    self.instance.fired += 1
                    return None
            for queue, before in zip(queues, tokens, strict=True):
                queue.clear()
                queue.extend(before)
            self._renew(self.instance)
        raise AssertionError("a firing ends in the loop")

    def _filled_queues(self) -> list[Queue]:
        """The input queues. They hold all that this firing takes, so that it can be put back."""
        for queues, rate in self.instance.inputs:
            for queue in queues:
                takes = not self.instance.spec.fires_on_any or len(queue) >= rate
                if isinstance(queue, AwaitedQueue) and takes:
                    queue.fill(rate)
        return [queue for queues, _ in self.instance.inputs for queue in queues]

    def _handling(self, attempt: int) -> Handling:
        if self.instance.spec.on_failure == "ignore":
            return "passed over"
        return "tried again" if attempt < RETRIES else "given up"

    def _record(self, failure: FailureRecord) -> None:
        """Record the failure, and drop what the failed firing counted and recorded."""
        instance = self.instance
        instance.discard_records()
        instance.on_record(instance, instance.record_source(), failure)
