"""Turns parts of snapshots into control messages, and back.

Large arrays, and pieces of arrays, are sent in messages of their own before the parts that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flowrl.core.array_pieces import ArrayPieces
from flowrl.core.batch import Array
from flowrl.core.saved_state import SavedState
from flowrl.runtime.control.messages import ArrayBytes, LoadParts, SavedParts, SavedPieces
from flowrl.runtime.snapshot import Parts

MESSAGE_PIECES = 4  # of 4 MB, in one message
MESSAGE_BYTES = 16 << 20  # of an array


def encode_parts(parts: Parts) -> dict[str, Any]:
    """Return parts of a snapshot as channels carry them."""
    return {
        key: [
            dict(saved.arrays),
            saved.text,
            {name: _encode_pieces(array) for name, array in saved.pieces.items()},
        ]
        for key, saved in parts.items()
    }


def load_messages(
    rounds: int, parts: Parts, fired: Mapping[str, int]
) -> Iterator[ArrayBytes | LoadParts]:
    """Yield the messages with which the coordinator sends the parts that a site shall load."""
    rest = {}
    for key, saved in parts.items():
        joined = {name: array.joined() for name, array in saved.pieces.items()}
        whole = SavedState({**saved.arrays, **joined}, saved.text)
        yield from _array_messages(key, whole)
        rest[key] = _without_large_arrays(whole)
    yield LoadParts(rounds, encode_parts(rest), fired)


def saved_messages(rounds: int, parts: Parts) -> Iterator[ArrayBytes | SavedPieces | SavedParts]:
    """Yield the messages with which a site sends its parts of a snapshot."""
    rest = {}
    for key, saved in parts.items():
        for name, array in saved.pieces.items():
            indices, pieces = tuple(array.pieces), tuple(array.pieces.values())
            for begin in range(0, len(indices), MESSAGE_PIECES):
                some = slice(begin, begin + MESSAGE_PIECES)
                yield SavedPieces(rounds, key, name, indices[some], pieces[some])
        yield from _array_messages(key, saved)
        rest[key] = _without_large_arrays(saved)
    yield SavedParts(rounds, encode_parts(rest))


def _array_messages(key: str, saved: SavedState) -> Iterator[ArrayBytes]:
    for name, array in saved.arrays.items():
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for begin in range(0, len(content) if _is_large(array) else 0, MESSAGE_BYTES):
            some = content[begin : begin + MESSAGE_BYTES]
            yield ArrayBytes(key, name, array.dtype.str, array.shape, begin, some)


def _without_large_arrays(saved: SavedState) -> SavedState:
    """Return a part without what is sent before it."""
    arrays, text = saved.parts()
    empty = {name: replace(array, pieces={}) for name, array in saved.pieces.items()}
    return SavedState({n: a for n, a in arrays.items() if not _is_large(a)}, text, empty)


def _is_large(array: Array) -> bool:
    return array.nbytes > MESSAGE_BYTES // 1024


def with_pieces(saved: SavedState, pieces: Mapping[str, Mapping[int, Array]]) -> SavedState:
    """Return a part with the pieces that were sent before it."""
    whole = {n: replace(array, pieces=pieces.get(n, {})) for n, array in saved.pieces.items()}
    return SavedState(*saved.parts(), whole)


def _encode_pieces(array: ArrayPieces) -> list[Any]:
    return [array.dtype.str, list(array.shape), dict(array.pieces), dict(array.stored)]


class ArrivedArrays:
    """Large arrays of parts, whose bytes arrive before the parts."""

    def __init__(self) -> None:
        self._arrays: dict[str, dict[str, Array]] = {}  # by part and name

    def add(self, message: ArrayBytes) -> None:
        own = self._arrays.setdefault(message.key, {})
        if message.name not in own:
            own[message.name] = np.empty(message.shape, np.dtype(message.dtype))
        flat = own[message.name].reshape(-1).view(np.uint8)
        flat[message.begin : message.begin + len(message.content)] = message.content

    def decode_parts(self, data: Mapping[str, Any]) -> dict[str, SavedState]:
        """Return the parts of a snapshot that a channel has carried, with the arrays that came before them."""
        found = {}
        for key, (arrays, text, encoded) in data.items():
            pieces = {name: _decode_pieces(*array) for name, array in encoded.items()}
            found[key] = SavedState({**arrays, **self._arrays.pop(key, {})}, text, pieces)
        return found


def _decode_pieces(dtype: str, shape: list[int], pieces: Any, stored: Any) -> ArrayPieces:
    return ArrayPieces(np.dtype(dtype), tuple(shape), pieces, stored)
