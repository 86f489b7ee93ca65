"""Summaries of tokens and states, for `flowrl peek`: columns with their least, mean and largest numbers, and some rows.

A token is summarised on the site where it was made, right after the firing, so that the token itself is not sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.errors import shortened_repr
from flowrl.core.state import State

SHOWN_ROWS = 3
SHOWN_NUMBERS = 4  # of a row
MAX_TEXT = 20  # characters of a value that is no number


@dataclass(frozen=True, slots=True)
class PeekRequest:
    """A request for the summary of what an instance gives next at one of its outputs. Answers carry its number."""

    number: int
    instance: str
    port: str


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """A column of a token, or an array of a state. Least, mean and largest are those of its finite numbers."""

    name: str
    type: str
    least: float | None
    mean: float | None
    largest: float | None
    nan: int
    infinite: int
    rows: tuple[str, ...]  # the first ones, as text


@dataclass(frozen=True, slots=True)
class TokenSummary:
    """A token or a state, and the firing that made it."""

    number: int  # of the request
    firing: int
    env_steps: int  # in its causal past
    train_iters: int
    rows: int | None  # None: it is no table
    bytes: int
    columns: tuple[ColumnSummary, ...]
    text: str = ""  # of what is neither a table nor a state; or of a state's command


def summarise(request: PeekRequest, value: Any, firing: int, past: Any) -> TokenSummary:
    """Summarise a value. `past` is the `Count` of its causal past."""
    made_by = (request.number, firing, past.env_steps, past.train_iters)
    if isinstance(value, Batch):
        columns = tuple(_column(n, a, a.shape[1:], a) for n, a in value.columns.items())
        return TokenSummary(*made_by, len(value), value.nbytes, columns)
    if isinstance(value, State):
        arrays = value.arrays
        columns = tuple(_column(n, a, a.shape, np.ravel(a)[None]) for n, a in arrays.items())
        nbytes = sum(array.nbytes for array in arrays.values())
        return TokenSummary(*made_by, None, nbytes, columns, _command_text(value.command))
    return TokenSummary(*made_by, None, 0, (), f"{type(value).__name__}: {shortened_repr(value)}")


def _command_text(command: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in command.items())


def _column(name: str, array: Array, shape: tuple[int, ...], rows: Array) -> ColumnSummary:
    dtype = str(array.dtype)
    shown = tuple(_row_text(row) for row in rows[:SHOWN_ROWS])
    type_ = f"{dtype}[{','.join(map(str, shape))}]" if shape else dtype
    if array.dtype.kind not in "biuf" or not array.size:
        return ColumnSummary(name, type_, None, None, None, 0, 0, shown)
    finite, nan, infinite = array, 0, 0
    if array.dtype.kind == "f" and not (is_finite := np.isfinite(array)).all():
        nan = int(np.isnan(array).sum())
        infinite = array.size - int(is_finite.sum()) - nan
        finite = array[is_finite]
    if not finite.size:
        return ColumnSummary(name, type_, None, None, None, nan, infinite, shown)
    mean = float(finite.mean(dtype=np.float64))
    return ColumnSummary(
        name, type_, float(finite.min()), mean, float(finite.max()), nan, infinite, shown
    )


def _row_text(row: Any) -> str:
    """A row in a few characters: a number, or the first numbers of several."""
    if not isinstance(row, np.ndarray) or not row.shape:
        return _number_text(row)
    numbers = [_number_text(value) for value in row.ravel()[:SHOWN_NUMBERS]]
    return f"[{' '.join(numbers)}{' …' if row.size > SHOWN_NUMBERS else ''}]"


def _number_text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return str(value)[:MAX_TEXT]
