"""Says where two tokens differ, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.errors import shortened_repr
from flowrl.core.state import Clock, State
from flowrl.runtime.streams import Token


def first_difference(a: Token, b: Token) -> str:
    """Say where two tokens differ, `a` first; empty if all of their bits are equal."""
    found = _difference("", a[0], b[0])
    if not found and a[1].counts != b[1].counts:
        found = f"its clock: {_clock_text(a[1])} -> {_clock_text(b[1])}"
    return found


def _difference(where: str, a: Any, b: Any) -> str:
    if type(a) is not type(b):
        return f"{where or 'the value'}: {shortened_repr(a)} -> {shortened_repr(b)}"
    if isinstance(a, np.ndarray):
        return _array_difference(where or "the array", a, b)
    if isinstance(a, Batch):
        return _items_difference("column", a.columns, b.columns)
    if isinstance(a, State):
        found = _items_difference("array", a.arrays, b.arrays)
        found = found or _items_difference("command", a.command, b.command)
        if not found and a.version != b.version:
            found = f"its version: {a.version} -> {b.version}"
        if found or a.whole is None or b.whole is None:
            return found
        found = _items_difference("whole state", a.whole.arrays, b.whole.arrays)
        return found or ("" if a.whole.text == b.whole.text else "the numbers of its whole state")
    if isinstance(a, Mapping):
        return _items_difference(f"{where} key".strip(), a, b)
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{where or 'the list'}: {len(a)} -> {len(b)} values"
        each = (
            _difference(f"{where}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b, strict=True))
        )
        return next(filter(None, each), "")
    equal = a == b or (isinstance(a, float) and repr(a) == repr(b))
    return "" if equal else f"{where or 'the value'}: {shortened_repr(a)} -> {shortened_repr(b)}"


def _items_difference(kind: str, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> str:
    if list(a) != list(b):
        return f"its {kind}s: {', '.join(map(str, a))} -> {', '.join(map(str, b))}"
    return next(filter(None, (_difference(f"{kind} '{key}'", a[key], b[key]) for key in a)), "")


def _array_difference(where: str, a: Array, b: Array) -> str:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{where}: {a.dtype}{list(a.shape)} -> {b.dtype}{list(b.shape)}"
    if a.tobytes() == b.tobytes():
        return ""
    rows = len(a) if a.ndim else 1
    bits = (np.ascontiguousarray(x).view(np.uint8).reshape(rows, -1) for x in (a, b))
    row = int(np.flatnonzero((next(bits) != next(bits)).any(axis=1))[0])
    one, two = (x[row] if x.ndim else x[()] for x in (a, b))
    if np.ndim(one):
        different = [x.reshape(-1) for x in (one, two)]
        at = next(
            i for i, (x, y) in enumerate(zip(*different, strict=True)) if x.tobytes() != y.tobytes()
        )
        one, two = (x[at] for x in different)
        where = f"{where}, row {row}, number {at}"
    elif a.ndim:
        where = f"{where}, row {row}"
    return f"{where}: {one!r} -> {two!r}"


def _clock_text(clock: Clock) -> str:
    return ", ".join(f"{node} {tuple(count)}" for node, count in sorted(clock.counts.items()))
