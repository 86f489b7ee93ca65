"""The metrics of a run as columns, from the file in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.errors import UsageError
from flowrl.runs.folder import METRICS_FILE, SUMMARY_FILE, read_jsonl

WORDS = ("node", "role")  # all other values of a row are numbers


def metric_columns(run: Path) -> dict[str, dict[str, Array]]:
    """The reports of each node in their order, as columns by name.

    Counts (`env_steps`, `train_iters`, …) are whole numbers. A metric is NaN in the reports that do not have it.
    """
    reports: dict[str, list[dict[str, Any]]] = {}
    for row in _read_rows(run):
        reports.setdefault(row["node"], []).append(row)
    return {node: _columns(rows) for node, rows in reports.items()}


def metrics_data_frame(run: Path) -> Any:
    """All reports as a DataFrame of pandas, with a row for each."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError(
            "a DataFrame needs pandas; pip install pandas, or take the columns of `metrics()`"
        ) from error
    return pandas.DataFrame(_read_rows(run))


def _read_rows(run: Path) -> list[dict[str, Any]]:
    """The reports with their numbers as numbers: the file has NaN and infinity as texts."""
    path = run / METRICS_FILE
    if not path.is_file():
        if (run / SUMMARY_FILE).is_file():  # it ended before a node reported anything
            return []
        raise UsageError(f"{run}: has no {METRICS_FILE}; expected the folder of a run that began")
    return [
        {name: value if name in WORDS else _number(value) for name, value in row.items()}
        for row in read_jsonl(path)
    ]


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _columns(rows: list[dict[str, Any]]) -> dict[str, Array]:
    names = dict.fromkeys(name for row in rows for name in row if name not in WORDS)
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
