"""The counts of irregularities, which nodes report in words of their own."""

from __future__ import annotations

from flowrl.core.records import IrregularityRecord, Record
from flowrl.core.state import Count
from flowrl.runtime.records import Irregularities, RecordSource


class Sink:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def record(self, source: RecordSource, record: Record) -> None:
        self.records.append(record)


SOURCE = RecordSource("envs", "", 0, Count())


def test_equal_words_are_added_up_and_different_ones_have_a_bound() -> None:
    found, sink = Irregularities(), Sink()
    for number in range(1000):
        found.pass_on(sink, SOURCE, IrregularityRecord(f"resets of env {number}", 2))
        found.pass_on(sink, SOURCE, IrregularityRecord("resets of env 3"))
    lines = found.lines()
    assert len(lines) == 51
    assert lines[1] == "envs: 1002 resets of env 3"
    assert lines[-1] == "1900 more irregularities: see the logs of the nodes"
    assert len(sink.records) == 2000


def test_long_words_are_shortened_in_the_summary() -> None:
    found, sink = Irregularities(), Sink()
    found.pass_on(sink, SOURCE, IrregularityRecord("x" * 10_000))
    assert found.lines() == ["envs: 1 " + "x" * 200]
    assert sink.records == ["1 " + "x" * 10_000]
