"""What the coordinator and the sites say to each other: plain data on two lanes for each site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.context import Keep, Metrics, Record, Verdict
from flowrl.engine.guard import Failed
from flowrl.engine.runner import Position
from flowrl.engine.teller import Teller
from flowrl.state import Count

UP, DOWN, FAILED = (
    "up",
    "down",
    "failed",
)  # lanes: what sites tell, what they are told, why they end


@dataclass(frozen=True, slots=True)
class Told:
    """A record, and where in the program it was told."""

    position: Position
    teller: Teller
    record: Record | Failed


def as_data(told: Told) -> list[Any]:
    """A record as plain data."""
    teller, record = told.teller, told.record
    who = [teller.key, teller.role, teller.fired, list(teller.total)]
    if isinstance(record, Metrics):
        what: list[Any] = ["metrics", dict(record.values)]
    elif isinstance(record, Keep):
        what = ["keep", record.name, record.state, dict(record.info)]
    elif isinstance(record, Verdict):
        what = ["verdict", record.reason]
    elif isinstance(record, Failed):
        what = ["failed", record.text, record.then]
    else:
        what = ["line", record]
    return [list(told.position), who, what]


def as_told(data: list[Any]) -> Told:
    """Plain data as a record."""
    position, (key, role, fired, total), (kind, *what) = data
    records: Mapping[str, Any] = {
        "metrics": Metrics,
        "keep": Keep,
        "verdict": Verdict,
        "failed": Failed,
        "line": str,
    }
    return Told(tuple(position), Teller(key, role, fired, Count(*total)), records[kind](*what))
