"""Values as messages: a tree of what msgpack knows, and the arrays' bytes beside it.

In a tree, None, booleans, numbers, strings and bytes are themselves; everything else is a list that begins with
its kind. An array is where its bytes begin in the *payload*: all arrays of a value, one after the other, each
aligned. How the payload travels (in the message, as frames, in shared memory) is not said here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flowrl.channels.dtypes import dtype_code
from flowrl.channels.errors import UnsendableValue
from flowrl.core.batch import Array, Batch
from flowrl.core.state import Clock, State

ALIGN = 64  # bytes: a cache line, and more than any vector instruction asks for
DEPTH = 60  # how deeply values nest; msgpack and Python's stack bear more

LIST, TUPLE, DICT, INT, SCALAR, TEXT, BYTES, ARRAY, BATCH, STATE, CLOCK = range(11)

Tree = Any


class Payload:
    """The arrays of a value, and where each begins."""

    __slots__ = ("arrays", "depth", "nbytes")

    def __init__(self) -> None:
        self.arrays: list[tuple[int, Array]] = []
        self.nbytes = 0
        self.depth = 0

    def joined(self) -> bytes:
        """All bytes in one piece."""
        if len(self.arrays) == 1:
            return self.arrays[0][1].tobytes()
        parts = []
        end = 0
        for begin, array in self.arrays:
            if begin != end:
                parts.append(_PADDING[: begin - end])
            parts.append(array.tobytes())
            end = begin + array.nbytes
        return b"".join(parts)

    def frames(self) -> list[memoryview]:
        """The bytes of every array that has any, without a copy."""
        return [a.reshape(-1).view(np.uint8).data for _, a in self.arrays if a.nbytes]

    def copy_to(self, memory: Array) -> None:
        """Copy every array to its place in `memory` (bytes)."""
        for begin, array in self.arrays:
            place: Array = np.ndarray(array.shape, array.dtype, memory, begin)
            np.copyto(place, array)


_PADDING = bytes(ALIGN)


def encode(value: object) -> tuple[Tree, Payload]:
    """The tree and the payload of a value."""
    payload = Payload()
    return _tree(value, payload), payload


def _tree(value: Any, payload: Payload) -> Tree:
    kind = type(value)
    if kind in _PLAIN:
        return value
    write = _WRITERS.get(kind)
    if write is None:
        if not isinstance(value, np.generic):
            raise UnsendableValue(f"cannot send a {kind.__module__}.{kind.__qualname__}; {_KNOWN}")
        write = _scalar
    return write(value, payload)


_KNOWN = (
    "tokens hold None, booleans, numbers, strings, bytes, lists, tuples, dicts, numpy arrays and scalars, "
    "batches, states and clocks"
)


def _int(value: int, payload: Payload) -> Tree:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return [INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]


def _deeper(payload: Payload) -> None:
    payload.depth += 1
    if payload.depth > DEPTH:
        raise UnsendableValue(
            f"cannot send what nests more than {DEPTH} deep; send arrays or a batch"
        )


def _list(value: list[Any], payload: Payload) -> Tree:
    _deeper(payload)
    tree = [LIST, *[_tree(item, payload) for item in value]]
    payload.depth -= 1
    return tree


def _tuple(value: tuple[Any, ...], payload: Payload) -> Tree:
    tree = _list(value, payload)  # type: ignore[arg-type]
    tree[0] = TUPLE
    return tree


def _dict(value: dict[Any, Any], payload: Payload) -> Tree:
    _deeper(payload)
    tree: list[Tree] = [DICT]
    for key, item in value.items():
        tree.append(_tree(key, payload))
        tree.append(_tree(item, payload))
    payload.depth -= 1
    return tree


def _scalar(value: np.generic, payload: Payload) -> Tree:
    return [SCALAR, dtype_code(value.dtype), value.tobytes()]


def _array(value: Array, payload: Payload) -> Tree:
    code = dtype_code(value.dtype)
    begin = payload.nbytes
    if value.flags.c_contiguous:
        payload.arrays.append((begin, value))
        payload.nbytes = (begin + value.nbytes + ALIGN - 1) & -ALIGN
        return [ARRAY, code, value.shape, begin]
    # The order of axes in memory is kept: sums over an array run in that order, and so their bits depend on it.
    axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    tree: list[Tree] = _array(np.ascontiguousarray(value.transpose(axes)), payload)
    tree.append(axes)
    return tree


def _columns(columns: Mapping[str, Array], payload: Payload) -> list[Tree]:
    tree: list[Tree] = []
    for name, array in columns.items():
        tree.append(name)
        tree.append(_tree(array, payload))
    return tree


def _batch(value: Batch, payload: Payload) -> Tree:
    return [BATCH, *_columns(value.columns, payload)]


def _state(value: State, payload: Payload) -> Tree:
    arrays, command = _columns(value.arrays, payload), _dict(dict(value.command), payload)
    return [STATE, arrays, command, int(value.version), clock_tree(value.clock)]


def clock_tree(clock: Clock) -> Tree:
    """The tree of a clock: its nodes, each with its three counts."""
    tree: list[Tree] = [CLOCK]
    for node, count in clock.counts.items():
        tree += (node, int(count[0]), int(count[1]), int(count[2]))
    return tree


_PLAIN = frozenset({type(None), bool, float, str, bytes})
_WRITERS: dict[type, Callable[[Any, Payload], Tree]] = {
    int: _int,
    list: _list,
    tuple: _tuple,
    dict: _dict,
    np.ndarray: _array,
    np.str_: lambda value, payload: [TEXT, str(value)],
    np.bytes_: lambda value, payload: [BYTES, bytes(value)],
    Batch: _batch,
    State: _state,
    Clock: lambda value, payload: clock_tree(value),
}
