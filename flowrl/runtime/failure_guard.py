"""Nodes whose failures the graph allows: `on_failure: restart` or `ignore`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flowrl.core.context import IrregularityRecord, Record
from flowrl.core.errors import NodeError
from flowrl.runtime.instance import Instance
from flowrl.runtime.records import RecordSource
from flowrl.runtime.streams import AwaitedQueue, Queue

RETRIES = 3  # times that a firing is tried again with a fresh node
MOST_FAILURES = 20  # that a summary tells; the nodes' logs tell all

Then = Literal["tried again", "passed over", "given up"]


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """A record of a firing that failed, and what was done then; a line of the node's log, too."""

    text: str
    then: Then


class RecordSink(Protocol):
    """Who is told what nodes record, in the order of the program."""

    def record(self, source: RecordSource, record: Record) -> None:
        """One record of one firing."""


@dataclass(slots=True)
class Irregularities:
    """What made this run differ from a deterministic one, if anything did."""

    restarts: int = 0
    ignored: int = 0
    dropped: int = 0
    failures: list[str] = field(default_factory=list)
    irregular: dict[tuple[str, str], int] = field(default_factory=dict)  # by node and what

    def pass_on(
        self, sink: RecordSink, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        """Count a failure, and tell it as a line of a log; tell other records as they are."""
        if isinstance(record, FailureRecord):
            self._add(record)
            sink.record(source, record.text)
        elif isinstance(record, IrregularityRecord):
            told = source.key, record.what
            self.irregular[told] = self.irregular.get(told, 0) + record.times
            sink.record(source, f"{record.times} {record.what}")
        else:
            sink.record(source, record)

    def _add(self, failed: FailureRecord) -> None:
        self.restarts += failed.then == "tried again"
        self.ignored += failed.then == "passed over"
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(failed.text)

    def lines(self) -> list[str]:
        """The same in words."""
        counts = {
            "firings were tried again with a fresh node": self.restarts,
            "firings failed and were passed over": self.ignored,
            "tokens were dropped": self.dropped,
        }
        told = [f"{node}: {n} {what}" for (node, what), n in self.irregular.items()]
        return [*(f"{n} {what}" for what, n in counts.items() if n), *told, *self.failures]


class FailureGuard:
    """Fires a node; where that fails, a fresh one tries again, or the firing is passed over."""

    def __init__(self, instance: Instance, renew: Callable[[Instance], None]) -> None:
        self.instance, self._renew = instance, renew
        self._fire = instance.fire

    def fire(self) -> None:
        """One firing, whatever it takes."""
        queues = self._filled()
        tokens = [list(queue) for queue in queues]
        for attempt in range(RETRIES + 1):
            try:
                return self._fire()
            except NodeError as error:
                if error.node != self.instance.key:
                    raise
                then = self._then(attempt)
                self._forget(FailureRecord(str(error), then))
                if then == "given up":
                    raise
                if then == "passed over":
                    self.instance.fired += 1
                    return None
            for queue, before in zip(queues, tokens, strict=True):
                queue.clear()
                queue.extend(before)
            self._renew(self.instance)
        raise AssertionError("a firing ends in the loop")

    def _filled(self) -> list[Queue]:
        """The input queues, with what this firing takes in them, to be put back."""
        for queues, rate in self.instance.waits_for:
            for queue in queues:
                waits = not self.instance.spec.fires_on_any or len(queue) >= rate
                if isinstance(queue, AwaitedQueue) and waits:
                    queue.fill(rate)
        return [queue for queues, _ in self.instance.waits_for for queue in queues]

    def _then(self, attempt: int) -> Then:
        if self.instance.spec.on_failure == "ignore":
            return "passed over"
        return "tried again" if attempt < RETRIES else "given up"

    def _forget(self, failed: FailureRecord) -> None:
        """What the failed firing counted and recorded does not count; that it failed is told."""
        instance = self.instance
        instance.forget()
        instance.on_record(instance, instance.record_source(), failed)
