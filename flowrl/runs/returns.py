"""What evaluators say of a run: one of them has the word that its summary tells."""

from __future__ import annotations

from dataclasses import replace

from flowrl.core.context import CheckpointRecord, MetricsRecord, Record
from flowrl.runtime.records import RecordSource


class Returns:
    """The last and the best that the first evaluator has told."""

    def __init__(self, judge: str) -> None:
        self._judge = judge
        self.last: float | None = None
        self.best: float | None = None

    def heard(self, source: RecordSource, record: Record) -> Record:
        """The record as it is written down.

        What several evaluators think best is not compared: each keeps a checkpoint of its own.
        """
        if source.role != "evaluator":
            return record
        if source.key != self._judge:
            if not isinstance(record, CheckpointRecord):
                return record
            return replace(record, name=f"{record.name}-{source.key.replace('/', '__')}")
        if isinstance(record, MetricsRecord):
            self.last = record.values.get("return_mean", self.last)
        elif isinstance(record, CheckpointRecord) and record.name == "best":
            self.best = record.info.get("eval_return", self.best)
        return record
