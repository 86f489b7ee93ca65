"""Encodes dtypes: a simple dtype as its array-protocol string, a structured one as a list of fields."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from flowrl.channels.errors import RefusedMessage, UnsendableValue

DType = np.dtype[Any]

_SIMPLE = re.compile(r"[<>|](?:[biufcmMSUV][0-9]{1,9})(?:\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")
_MAX_FIELDS = 256  # of a structured dtype
_MAX_DEPTH = 8  # of a structured dtype's nesting


@lru_cache(256)
def encode_dtype(dtype: DType) -> Any:
    """Return a dtype's msgpack form; raise `UnsendableValue` if it would not be decoded to an equal dtype."""
    code: Any = dtype.str
    if dtype.names is not None:
        code = [[name, *_encode_field(dtype[name])] for name in dtype.names]
    try:
        if not dtype.hasobject and decode_dtype(code) == dtype:
            return code
    except RefusedMessage:
        pass
    raise UnsendableValue(
        f"cannot send an array of dtype {dtype}; "
        "numbers, booleans, dates, fixed strings and packed structures can be sent"
    )


def _encode_field(dtype: DType) -> tuple[Any, list[int]]:
    return encode_dtype(dtype.base), list(dtype.shape)


def decode_dtype(code: Any) -> DType:
    """Return the dtype of a code, which may be invalid."""
    return _decode_simple(code) if type(code) is str else _decode_structured(code, _MAX_DEPTH)


@lru_cache(256)
def _decode_simple(code: str) -> DType:
    if not _SIMPLE.fullmatch(code):
        raise RefusedMessage("dtype")
    try:
        dtype: DType = np.dtype(code)
        np.empty(0, dtype)
    except (TypeError, ValueError, OverflowError):
        raise RefusedMessage("dtype") from None
    if np.empty(0, dtype).dtype != dtype:  # numpy widens empty strings
        raise RefusedMessage("dtype")
    return dtype


def _decode_structured(code: Any, depth: int) -> DType:
    if type(code) is not list or len(code) > _MAX_FIELDS or depth == 0:
        raise RefusedMessage("dtype")
    fields: list[tuple[str, DType, tuple[int, ...]]] = []
    for field in code:
        if type(field) is not list or len(field) != 3 or type(field[0]) is not str:
            raise RefusedMessage("dtype")
        name, inner, shape = field
        if type(shape) is not list or not all(type(n) is int and 0 <= n < 1 << 31 for n in shape):
            raise RefusedMessage("dtype")
        base = _decode_simple(inner) if type(inner) is str else _decode_structured(inner, depth - 1)
        fields.append((name, base, tuple(shape)))
    try:
        return np.dtype(fields)
    except (TypeError, ValueError, OverflowError):
        raise RefusedMessage("dtype") from None


def decode_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape given in a message, which may be invalid."""
    if type(shape) is not list or len(shape) > 64:
        raise RefusedMessage("shape")
    for n in shape:
        if type(n) is not int or n < 0:
            raise RefusedMessage("shape")
    return tuple(shape)
