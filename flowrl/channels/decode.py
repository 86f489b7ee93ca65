"""Messages as values: reads what `encode` wrote, and refuses everything else.

The bytes may come from anybody: nothing is executed, no memory is taken beyond what the message itself holds,
and the only error is `Refused`. Arrays are read-only views of the received memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from flowrl.channels.dtypes import read_dtype, read_shape
from flowrl.channels.encode import (
    ALIGN,
    ARRAY,
    BATCH,
    BYTES,
    CLOCK,
    DEPTH,
    DICT,
    INT,
    LIST,
    SCALAR,
    STATE,
    TEXT,
    TUPLE,
    Tree,
)
from flowrl.channels.errors import RefusedMessage
from flowrl.core.batch import Array, Batch
from flowrl.core.state import EMPTY_CLOCK, Clock, Count, State

Memory = Any  # bytes, a read-only memoryview, or a read-only array of bytes


class Received:
    """A payload as it came: a stretch of memory, or frames that hold one array each."""

    __slots__ = ("begin", "depth", "frames", "memory", "nbytes")

    def __init__(self, memory: Memory, begin: int, nbytes: int) -> None:
        if begin + nbytes > len(memory):
            raise RefusedMessage("payload")
        self.memory, self.begin, self.nbytes = memory, begin, nbytes
        self.frames: dict[int, Memory] | None = None
        self.depth = 0

    @classmethod
    def of_frames(cls, frames: Sequence[Memory]) -> Received:
        """The payload whose arrays are these, none of them empty."""
        payload = cls(b"", 0, 0)
        payload.frames = {}
        begin = 0
        for frame in frames:
            payload.frames[begin] = frame
            begin = (begin + len(frame) + ALIGN - 1) & -ALIGN
        payload.nbytes = begin
        return payload

    def find(self, begin: int, nbytes: int) -> tuple[Memory, int]:
        """The memory that holds the array at `begin`, and where in it."""
        if self.frames is None:
            if begin + nbytes > self.nbytes:
                raise RefusedMessage("payload")
            return self.memory, self.begin + begin
        frame = self.frames.get(begin, b"")
        if len(frame) != nbytes:
            raise RefusedMessage("payload")
        return frame, 0


def decode(tree: Tree, payload: Received) -> Any:
    """The value of a tree; `Refused` if it is none."""
    try:
        return _value(tree, payload)
    except (TypeError, ValueError, IndexError, OverflowError, RecursionError, MemoryError):
        raise RefusedMessage("malformed") from None


def _value(tree: Tree, payload: Received) -> Any:
    if type(tree) is not list:
        return tree
    kind = tree[0]
    if type(kind) is not int or not 0 <= kind < len(_READERS):
        raise RefusedMessage("kind")
    return _READERS[kind](tree, payload)


def _deeper(payload: Received) -> None:
    payload.depth += 1
    if payload.depth > DEPTH:
        raise RefusedMessage("depth")


def _list(tree: list[Tree], payload: Received) -> list[Any]:
    _deeper(payload)
    value = [_value(item, payload) for item in tree[1:]]
    payload.depth -= 1
    return value


def _tuple(tree: list[Tree], payload: Received) -> tuple[Any, ...]:
    return tuple(_list(tree, payload))


def _dict(tree: list[Tree], payload: Received) -> dict[Any, Any]:
    flat = _list(tree, payload)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _int(tree: list[Tree], payload: Received) -> int:
    return int.from_bytes(_is(tree[1], bytes), "little", signed=True)


def _scalar(tree: list[Tree], payload: Received) -> Any:
    dtype, data = read_dtype(tree[1]), _is(tree[2], bytes)
    if dtype.itemsize != len(data):
        raise RefusedMessage("scalar")
    return np.ndarray((), dtype, data)[()]


def _array(tree: list[Tree], payload: Received) -> Array:
    _, code, shape, begin = tree[:4]
    dtype = read_dtype(code)
    if type(begin) is not int or begin < 0:
        raise RefusedMessage("payload")
    nbytes = prod(read_shape(shape)) * dtype.itemsize
    memory, first = payload.find(begin, nbytes) if nbytes else (b"", 0)
    array: Array = np.ndarray(shape, dtype, memory, first)
    if len(tree) > 4:
        array = array.transpose(_inverse(tree[4]))
    return array


def _inverse(axes: Any) -> list[int]:
    if type(axes) is not list or not all(type(axis) is int for axis in axes):
        raise RefusedMessage("axes")
    return sorted(range(len(axes)), key=axes.__getitem__)


def _columns(tree: Sequence[Tree], payload: Received) -> dict[str, Array]:
    names, arrays = tree[::2], tree[1::2]
    if len(names) != len(arrays) or len(set(names)) != len(names):
        raise RefusedMessage("columns")
    return {_is(n, str): _is(_value(a, payload), np.ndarray) for n, a in zip(names, arrays)}  # noqa: B905


def _batch(tree: list[Tree], payload: Received) -> Batch:
    return Batch(_columns(tree[1:], payload))


def _state(tree: list[Tree], payload: Received) -> State:
    _, arrays, command, version, clock = tree
    command = _is(_value(command, payload), dict)
    version = _is(_value(version, payload), int)
    return State(_columns(_is(arrays, list), payload), command, version, read_clock(clock))


def read_clock(tree: Tree) -> Clock:
    """The clock of a tree, which may be hostile."""
    if type(tree) is not list or len(tree) % 4 != 1 or tree[0] != CLOCK:
        raise RefusedMessage("clock")
    counts = {}
    for i in range(1, len(tree), 4):
        node, *count = tree[i : i + 4]
        if type(node) is not str or not all(type(n) is int and n >= 0 for n in count):
            raise RefusedMessage("clock")
        counts[node] = Count(*count)
    return Clock(counts) if counts else EMPTY_CLOCK


def _is(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise RefusedMessage("malformed")
    return value


_BY_KIND: dict[int, Callable[[list[Tree], Received], Any]] = {
    LIST: _list,
    TUPLE: _tuple,
    DICT: _dict,
    INT: _int,
    SCALAR: _scalar,
    TEXT: lambda tree, payload: np.str_(_is(tree[1], str)),
    BYTES: lambda tree, payload: np.bytes_(_is(tree[1], bytes)),
    ARRAY: _array,
    BATCH: _batch,
    STATE: _state,
    CLOCK: lambda tree, payload: read_clock(tree),
}
_READERS = [_BY_KIND[kind] for kind in range(len(_BY_KIND))]
