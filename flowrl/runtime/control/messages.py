"""What the coordinator and the sites say to each other: plain data on two lanes for each site."""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.core.context import (
    CheckpointRecord,
    IrregularityRecord,
    MetricsRecord,
    Record,
    VerdictRecord,
)
from flowrl.core.errors import NodeError, attached_files
from flowrl.core.state import Count
from flowrl.runtime.records import FailureRecord, RecordSource
from flowrl.runtime.site_state import Position

UP, DOWN, FAILED = (
    "up",
    "down",
    "failed",
)  # lanes: what sites tell, what they are told, why they end


@dataclass(frozen=True, slots=True)
class PositionedRecord:
    """A record, and where in the program it was told."""

    position: Position
    source: RecordSource
    record: Record | FailureRecord


def as_data(told: PositionedRecord) -> list[Any]:
    """A record as plain data."""
    source, record = told.source, told.record
    who = [source.key, source.role, source.fired, list(source.total)]
    return [list(told.position), who, record_data(record)]


def record_data(record: Record | FailureRecord) -> list[Any]:
    """What was told, as plain data."""
    if isinstance(record, MetricsRecord):
        return ["metrics", dict(record.values)]
    if isinstance(record, CheckpointRecord):
        return ["keep", record.name, record.state, dict(record.info)]
    if isinstance(record, VerdictRecord):
        return ["verdict", record.reason]
    if isinstance(record, IrregularityRecord):
        return ["irregular", record.what, record.times]
    if isinstance(record, FailureRecord):
        return ["failed", record.text, record.handling]
    return ["line", record]


def as_told(data: list[Any]) -> PositionedRecord:
    """Plain data as a record."""
    position, (key, role, fired, total), record = data
    return PositionedRecord(
        tuple(position), RecordSource(key, role, fired, Count(*total)), record_of(record)
    )


def record_of(data: list[Any]) -> Any:
    """Plain data as what was told."""
    kind, *what = data
    records: Mapping[str, Any] = {
        "metrics": MetricsRecord,
        "keep": CheckpointRecord,
        "verdict": VerdictRecord,
        "failed": FailureRecord,
        "irregular": IrregularityRecord,
        "line": str,
    }
    return records[kind](*what)


class RemoteTraceback(Exception):
    """Where an error was raised on another site."""


def error_words(error: BaseException) -> list[Any]:
    """An error as plain data: of which node and doing what, if it says so; type, text, traceback, files."""
    node, doing = (error.node, error.doing) if isinstance(error, NodeError) else ("", "")
    cause = error.__cause__ or error if node else error
    return [node, doing, type(cause).__name__, str(cause), _traced(cause), attached_files(error)]


def _traced(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def raised_there(site: str, words: list[Any]) -> Exception:
    """An error that was raised on another site: of the same name, and of the same builtin type."""
    node, doing, name, message, traced, files = words
    base = vars(builtins).get(name)
    if not (isinstance(base, type) and issubclass(base, Exception)):
        base = Exception
    kind = type(name, (base,), {"__str__": lambda self: message})
    cause: Exception = kind.__new__(kind)  # type: ignore[call-overload]  # some want more than a text
    cause.files = files  # type: ignore[attr-defined]
    cause.__cause__ = RemoteTraceback(f"on site '{site}'\n{traced}")
    return NodeError(node, doing, cause) if node else cause
