"""What nodes report where the run is cut (`ctx.report_at_cut`): what is in none of their reports yet.

A site may have fired beyond the cut before it knows the cut. So what an instance is to report is kept for each of its
firings after which a cut may fall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from flowrl.core.errors import NodeError
from flowrl.core.records import (
    CutReport,
    HistogramsRecord,
    LinesRecord,
    MetricsRecord,
    Record,
)
from flowrl.runtime.instance import RAISED, Instance
from flowrl.runtime.records import RecordSource
from flowrl.runtime.site_state import Position

ReportRecord = MetricsRecord | HistogramsRecord | LinesRecord | str


class PendingReport(NamedTuple):
    """What an instance is to report if the run is cut after one of its firings and before its next pending report."""

    position: Position  # of that firing; () of what was loaded
    source: RecordSource
    report: CutReport


class CutReports:
    """The pending reports of the instances of one site, each in the order of its firings."""

    def __init__(self) -> None:
        self._pending: dict[str, list[PendingReport]] = {}

    def add(self, instance: Instance, source: RecordSource, report: CutReport) -> None:
        """Keep a report of the instance's current firing."""
        found = PendingReport(instance.position, source, report)
        self._pending.setdefault(instance.key, []).append(found)

    def add_loaded(self, instance: Instance) -> None:
        """Keep the report of a node that has loaded its state: the run may be cut before it fires again."""
        source = replace(instance.record_source(), fired=instance.fired - 1)
        for report in instance.ctx.records:
            if isinstance(report, CutReport):
                self._pending[instance.key] = [PendingReport((), source, report)]

    def settle(self, is_settled: Callable[[Position], bool]) -> None:
        """Forget the reports that no cut can ask for, because those of a later settled firing took their place."""
        for reports in self._pending.values():
            while len(reports) > 1 and is_settled(reports[1].position):
                del reports[0]

    def make(
        self, instance: Instance, is_included: Callable[[Position], bool]
    ) -> Iterator[tuple[Position, RecordSource, ReportRecord]]:
        """Yield the records of an instance's report at a cut that includes these positions. It fires no more."""
        newest_first = reversed(self._pending.get(instance.key, []))
        newest = next((one for one in newest_first if is_included(one.position)), None)
        if newest is None or newest.report.make is None:
            return
        instance.discard_records()  # of a firing that was not completed
        try:
            newest.report.make()
            records = [_report_record(record) for record in instance.ctx.take_records()]
        except RAISED as error:
            raise NodeError(instance.key, "reporting at the cut", error) from error
        for record in records:
            yield newest.position, newest.source, record


def _report_record(record: Record) -> ReportRecord:
    if not isinstance(record, ReportRecord):
        raise TypeError(f"a report at the cut cannot have a {type(record).__name__}")
    return record
