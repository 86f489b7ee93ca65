"""Dataclasses as plain data (JSON or msgpack), and back with every value checked against its declared type.

A dataclass becomes a dict of its fields, a NamedTuple a list. A member of a union of dataclasses carries the name
of its class as `type`. A State, and a value declared as Any, is passed on unchanged, because channels carry arrays.
Data of another form is refused: it may come from another process, another version, or a hostile peer.
"""

from __future__ import annotations

import numbers
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Generic, Literal, TypeVar, Union

from flowrl.core.state import State

T = TypeVar("T")
Convert = Callable[[Any], Any]
NUMBERS = {int: numbers.Integral, float: numbers.Real}  # numpy's numbers are kept
USUAL_NUMBERS = {int: (int,), float: (float, int)}  # which are recognised sooner than abstract ones


class MalformedDataError(ValueError):
    """The data is not of the declared type."""


class DataCodec(Generic[T]):
    """Converts values of one declared type, such as a dataclass or a union of dataclasses."""

    def __init__(self, kind: Any) -> None:
        self._encode, self._decode = _codec(kind)

    def encode(self, value: T) -> Any:
        return self._encode(value)

    def decode(self, data: Any) -> T:
        """Return the value of plain data; raise MalformedDataError if it is not of the declared type."""
        decoded: T = self._decode(data)
        return decoded


def _unchanged(value: Any) -> Any:
    return value


@cache
def _codec(kind: Any) -> tuple[Convert, Convert]:
    """Return the functions that encode and decode a declared type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _unchanged, _unchanged
    if origin is Literal:
        return _unchanged, _checked(lambda data: type(data) is str and data in arguments, kind)
    if origin in (Union, types.UnionType):
        return _union_codec(arguments)
    if origin is tuple:
        return _tuple_codec(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_codec(arguments[1])
    if isinstance(kind, type) and is_dataclass(kind) and kind is not State:
        return _dataclass_codec(kind)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _named_tuple_codec(kind)
    if kind in NUMBERS:
        usual, number = USUAL_NUMBERS[kind], NUMBERS[kind]
        return _unchanged, _checked(
            lambda data: (
                type(data) in usual or (isinstance(data, number) and not isinstance(data, bool))
            ),
            kind,
        )
    return _unchanged, _checked(lambda data: isinstance(data, kind), kind)


def _checked(fits: Callable[[Any], bool], kind: Any) -> Convert:
    def decode(data: Any) -> Any:
        if not fits(data):
            raise MalformedDataError(
                f"expected {getattr(kind, '__name__', kind)}, not {data!r:.80}"
            )
        return data

    return decode


_is_list = _checked(lambda data: isinstance(data, list | tuple), list)
_is_dict = _checked(
    lambda data: (
        (type(data) is dict or isinstance(data, Mapping)) and {str}.issuperset(map(type, data))
    ),
    dict,
)


def _tuple_codec(arguments: tuple[Any, ...]) -> tuple[Convert, Convert]:
    item, ellipsis = arguments
    assert ellipsis is Ellipsis, "only tuple[T, ...] has a codec"
    encode, decode = _codec(item)
    encode_all = list if encode is _unchanged else lambda value: [encode(one) for one in value]
    return encode_all, lambda data: tuple([decode(one) for one in _is_list(data)])


def _mapping_codec(item: Any) -> tuple[Convert, Convert]:
    encode, decode = _codec(item)
    return (
        lambda value: {key: encode(one) for key, one in value.items()},
        lambda data: {key: decode(one) for key, one in _is_dict(data).items()},
    )


def _named_tuple_codec(kind: Any) -> tuple[Convert, Convert]:
    codecs = [_codec(hint) for hint in typing.get_type_hints(kind).values()]
    encoders, decoders = zip(*codecs, strict=True)

    def decode(data: Any) -> Any:
        if len(_is_list(data)) != len(decoders):
            raise MalformedDataError(f"expected {kind.__name__}, not {data!r:.80}")
        return kind(*[one(value) for one, value in zip(decoders, data, strict=True)])

    if all(one is _unchanged for one in encoders):
        return list, decode
    return lambda value: [one(v) for one, v in zip(encoders, value, strict=True)], decode


def _dataclass_codec(kind: Any) -> tuple[Convert, Convert]:
    hints = typing.get_type_hints(kind)
    codecs = {field.name: _codec(hints[field.name]) for field in fields(kind)}
    encoders = [(name, encode) for name, (encode, _) in codecs.items()]
    decoders = [(name, decode) for name, (_, decode) in codecs.items()]

    def decode_all(data: Any) -> Any:
        if _is_dict(data).keys() != codecs.keys():
            raise MalformedDataError(f"expected the fields of {kind.__name__}, not {list(data)}")
        return kind(**{name: decode(data[name]) for name, decode in decoders})

    return lambda value: {
        name: encode(getattr(value, name)) for name, encode in encoders
    }, decode_all


def _union_codec(arguments: tuple[Any, ...]) -> tuple[Convert, Convert]:
    """A union holds any number of dataclasses, at most one other type, and perhaps None."""
    classes: list[Any] = [kind for kind in arguments if is_dataclass(kind)]
    tagged = {kind.__name__: (kind, *_codec(kind)) for kind in classes}
    other = [kind for kind in arguments if not is_dataclass(kind) and kind is not types.NoneType]
    assert len(other) <= 1, "a union has at most one member that is not a dataclass"
    encode_other, decode_other = _codec(other[0]) if other else (_unchanged, _refuse)
    by_class = {kind: (name, encode) for name, (kind, encode, _) in tagged.items()}
    optional = types.NoneType in arguments
    if len(tagged) + len(other) == 1 and tagged:  # an optional dataclass needs no name
        _, encode_other, decode_other = next(iter(tagged.values()))
        tagged, by_class = {}, {}

    def encode(value: Any) -> Any:
        if value is None and optional:
            return None
        if type(value) in by_class:
            name, encode_one = by_class[type(value)]
            return {"type": name, **encode_one(value)}
        return encode_other(value)

    def decode(data: Any) -> Any:
        if data is None and optional:
            return None
        if tagged and isinstance(data, Mapping):
            rest = dict(data)
            name = rest.pop("type", None)
            if type(name) is not str or name not in tagged:
                raise MalformedDataError(f"unknown type {name!r:.80}")
            return tagged[name][2](rest)
        return decode_other(data)

    return encode, decode


def _refuse(data: Any) -> Any:
    raise MalformedDataError(f"unexpected {data!r:.80}")
