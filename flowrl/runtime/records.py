"""Records of a run: their source, their sink, and the irregularities that they report.

`flowrl.core.records` declares the records that nodes emit. `FailureRecord` is the engine's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from flowrl.core.plain_data import DataCodec
from flowrl.core.records import IrregularityRecord, Record, WrittenRecord
from flowrl.core.state import Count

# In the summary; the nodes' logs have everything.
MAX_FAILURES = 20
MAX_REPORTED_KINDS = 50  # of irregularities that nodes report, in words of their own
MAX_TEXT_CHARS = 200

Handling = Literal["retried", "ignored", "stopped"]


@dataclass(frozen=True, slots=True)
class RecordSource:
    """The node and the firing that emitted a record."""

    key: str
    role: str
    fired: int  # the number of firings before this one
    total: Count  # of the firing's causal past, this firing included


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """A failed firing. The text is a line of the node's log."""

    text: str
    handling: Handling


# the records that a site sends; it keeps deferred effects to itself
SentRecord = WrittenRecord | FailureRecord
RECORD: DataCodec[Any] = DataCodec(SentRecord)


class RecordSink(Protocol):
    """Takes the records of a run, in the order of the serial program."""

    def record(self, source: RecordSource, record: Record) -> None:
        """Take a record of one firing."""


@dataclass(slots=True)
class Irregularities:
    """Counts of events that make this run differ from a deterministic one."""

    restarts: int = 0
    ignored: int = 0
    dropped: int = 0
    failures: list[str] = field(default_factory=list)
    reported: dict[tuple[str, str], int] = field(default_factory=dict)  # by node and text
    more_reported: int = 0  # those of further kinds

    def pass_on(
        self, sink: RecordSink, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        """Pass a record on to the sink. Failures and irregularities are counted and passed on as lines of the log."""
        if isinstance(record, FailureRecord):
            self._add(record)
            sink.record(source, record.text)
        elif isinstance(record, IrregularityRecord):
            self._add_reported(source.key, record)
            sink.record(source, f"{record.times} {record.what}")
        else:
            sink.record(source, record)

    def _add(self, failure: FailureRecord) -> None:
        self.restarts += failure.handling == "retried"
        self.ignored += failure.handling == "ignored"
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(failure.text)

    def _add_reported(self, node: str, record: IrregularityRecord) -> None:
        key = node, record.what[:MAX_TEXT_CHARS]
        if key in self.reported or len(self.reported) < MAX_REPORTED_KINDS:
            self.reported[key] = self.reported.get(key, 0) + record.times
        else:
            self.more_reported += record.times

    def lines(self) -> list[str]:
        """Return the counts in words, for the summary of the run."""
        counts = {
            "firings were retried with a fresh node": self.restarts,
            "firings failed and were ignored": self.ignored,
            "tokens were dropped": self.dropped,
        }
        reported = [f"{node}: {n} {what}" for (node, what), n in self.reported.items()]
        if self.more_reported:
            reported.append(f"{self.more_reported} more irregularities: see the logs of the nodes")
        return [*(f"{n} {what}" for what, n in counts.items() if n), *reported, *self.failures]
