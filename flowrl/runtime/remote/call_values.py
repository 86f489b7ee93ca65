"""Named tuples and dataclasses in calls between sites: both ends know their types, none comes over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from flowrl.channels.errors import RefusedMessage, UnsendableValue
from flowrl.core.batch import Batch, Column
from flowrl.core.state import Clock, State

TUPLE = -1  # in a record's number's place

_PLAIN = (type(None), bool, int, float, str, bytes, np.ndarray, np.generic, Batch, State, Clock)


class CallValueCodec:
    """Turns the values of one service's calls into what channels carry, and back."""

    def __init__(self, types: Iterable[type]) -> None:
        self._types = (Column, *types)
        self._number = {kind: number for number, kind in enumerate(self._types)}

    def plain(self, value: Any) -> Any:
        """Lists, tuples, dicts and records in which every tuple begins with its record's number."""
        kind = type(value)
        if kind in self._number:
            return (self._number[kind], *map(self.plain, _values(value)))
        if kind is tuple:
            return (TUPLE, *map(self.plain, value))
        if kind is list:
            return [self.plain(item) for item in value]
        if kind is dict:
            return {key: self.plain(item) for key, item in value.items()}
        if isinstance(value, _PLAIN):
            return value
        raise UnsendableValue(
            f"a call cannot take or give a {kind.__module__}.{kind.__qualname__} between sites; "
            "name it in the service's `values`, if it is a named tuple or a dataclass"
        )

    def whole(self, data: Any) -> Any:
        """The value again."""
        kind = type(data)
        if kind is tuple:
            return self._record(*data)
        if kind is list:
            return [self.whole(item) for item in data]
        if kind is dict:
            return {key: self.whole(item) for key, item in data.items()}
        return data

    def _record(self, number: Any = None, *values: Any) -> Any:
        if number == TUPLE:
            return tuple(map(self.whole, values))
        if type(number) is not int or not 0 <= number < len(self._types):
            raise RefusedMessage("unknown record")
        make: Callable[..., Any] = self._types[number]
        return make(*map(self.whole, values))


def _values(record: Any) -> Iterable[Any]:
    """The fields of a named tuple or a dataclass, in order."""
    if is_dataclass(record):
        return [getattr(record, field.name) for field in fields(record)]
    return tuple(record)
