"""Encodes the arguments and replies of calls between sites.

Channels carry plain values. A named tuple or dataclass becomes a tuple that begins with the number of its type. Both
ends know the types from the service's declaration, so no type is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from flowrl.channels.errors import RefusedMessage, UnsendableValue
from flowrl.core.batch import Batch, Column
from flowrl.core.state import Clock, State

TUPLE = -1  # in place of a type's number

_PLAIN = (type(None), bool, int, float, str, bytes, np.ndarray, np.generic, Batch, State, Clock)


class CallValueCodec:
    """Encodes and decodes the values of one service's calls."""

    def __init__(self, types: Iterable[type]) -> None:
        self._types = (Column, *types)
        self._number = {kind: number for number, kind in enumerate(self._types)}

    def encode(self, value: Any) -> Any:
        """Encode a value: lists, dicts, and tuples that begin with the number of their type."""
        kind = type(value)
        if kind in self._number:
            return (self._number[kind], *map(self.encode, _field_values(value)))
        if kind is tuple:
            return (TUPLE, *map(self.encode, value))
        if kind is list:
            return [self.encode(item) for item in value]
        if kind is dict:
            return {key: self.encode(item) for key, item in value.items()}
        if isinstance(value, _PLAIN):
            return value
        raise UnsendableValue(
            f"a call between sites cannot carry a {kind.__module__}.{kind.__qualname__}; "
            "name it in the service's `values`, if it is a named tuple or a dataclass"
        )

    def decode(self, data: Any) -> Any:
        kind = type(data)
        if kind is tuple:
            return self._decode_tuple(*data)
        if kind is list:
            return [self.decode(item) for item in data]
        if kind is dict:
            return {key: self.decode(item) for key, item in data.items()}
        return data

    def _decode_tuple(self, number: Any = None, *values: Any) -> Any:
        if number == TUPLE:
            return tuple(map(self.decode, values))
        if type(number) is not int or not 0 <= number < len(self._types):
            raise RefusedMessage("unknown record")
        make: Callable[..., Any] = self._types[number]
        return make(*map(self.decode, values))


def _field_values(value: Any) -> Iterable[Any]:
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return tuple(value)
