"""Encodes values for messages, and decodes them again.

A value becomes a *tree* of types that msgpack knows, and a *payload* with the bytes of its arrays. In the tree None,
booleans, numbers, strings and bytes stand for themselves. Everything else is a list that begins with its kind. An
array is represented by its dtype, its shape and its offset in the payload, which holds all arrays in order, each
aligned. The transport chooses how the payload travels: in the message, as message parts, or in shared memory.

A value that was rounded to half precision can be *narrowed*: its float32 arrays are in the payload as float16, and are
widened again when they are decoded.

Decoding does not trust the bytes, which may come from anybody: it executes no code, allocates no memory beyond the
size of the message (for narrowed arrays, beyond twice that size), and raises no error but `RefusedMessage`. Decoded
arrays are read-only views of the received memory, except narrowed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from flowrl.channels.dtype_codec import decode_dtype, decode_shape, encode_dtype
from flowrl.channels.errors import RefusedMessage, UnsendableValue
from flowrl.core.batch import Array, Batch
from flowrl.core.saved_state import SavedState
from flowrl.core.state import EMPTY_CLOCK, Clock, Count, State

ALIGN = 64  # bytes: a cache line, and more than any vector instruction needs
MAX_DEPTH = 60  # of nested values; msgpack and Python's stack allow more

LIST, TUPLE, DICT, INT, SCALAR, TEXT, BYTES, ARRAY, BATCH, STATE, CLOCK, NARROWED = range(12)

Tree = Any
Memory = Any  # bytes, a read-only memoryview, or a read-only array of bytes


# encoding


class OutgoingPayload:
    """The arrays of a value that is being encoded, with their offsets."""

    __slots__ = ("arrays", "depth", "narrowed_bytes", "narrows", "nbytes")

    def __init__(self, narrows: bool = False) -> None:
        """With `narrows`, float32 arrays are narrowed: they must hold numbers of half precision."""
        self.arrays: list[tuple[int, Array]] = []
        self.nbytes = 0
        self.depth = 0  # of the value that is being encoded
        self.narrows = narrows
        self.narrowed_bytes = 0  # by which narrowed arrays are smaller

    def as_bytes(self) -> bytes:
        """Return a contiguous copy of all arrays, without padding after the last one."""
        if len(self.arrays) == 1:
            return self.arrays[0][1].tobytes()
        pieces = []
        end = 0
        for offset, array in self.arrays:
            if offset != end:
                pieces.append(_PADDING[: offset - end])
            pieces.append(array.tobytes())
            end = offset + array.nbytes
        return b"".join(pieces)

    def as_parts(self) -> list[memoryview]:
        """Return the bytes of each array that is not empty, without a copy."""
        return [a.reshape(-1).view(np.uint8).data for _, a in self.arrays if a.nbytes]

    def copy_to(self, memory: Array) -> None:
        """Copy each array to its offset in `memory`, an array of bytes."""
        for offset, array in self.arrays:
            target: Array = np.ndarray(array.shape, array.dtype, memory, offset)
            np.copyto(target, array)


_PADDING = bytes(ALIGN)


def encode(value: object, narrows: bool = False) -> tuple[Tree, OutgoingPayload]:
    """Return the tree and the payload of a value; raise `UnsendableValue` for types that cannot be sent."""
    payload = OutgoingPayload(narrows)
    return _encode_value(value, payload), payload


def _encode_value(value: Any, payload: OutgoingPayload) -> Tree:
    kind = type(value)
    if kind in _PLAIN:
        return value
    encoder = _ENCODERS.get(kind)
    if encoder is None:
        if not isinstance(value, np.generic):
            raise UnsendableValue(
                f"cannot send a {kind.__module__}.{kind.__qualname__}; {_SENDABLE}"
            )
        encoder = _encode_scalar
    return encoder(value, payload)


_SENDABLE = (
    "tokens hold None, booleans, numbers, strings, bytes, lists, tuples, dicts, numpy arrays and scalars, "
    "batches, states and clocks"
)


def _encode_int(value: int, payload: OutgoingPayload) -> Tree:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return [INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]


def _enter_encoding(payload: OutgoingPayload) -> None:
    payload.depth += 1
    if payload.depth > MAX_DEPTH:
        raise UnsendableValue(
            f"cannot send a value nested more than {MAX_DEPTH} deep; send arrays or a batch"
        )


def _encode_list(value: list[Any], payload: OutgoingPayload) -> Tree:
    _enter_encoding(payload)
    tree = [LIST, *[_encode_value(element, payload) for element in value]]
    payload.depth -= 1
    return tree


def _encode_tuple(value: tuple[Any, ...], payload: OutgoingPayload) -> Tree:
    tree = _encode_list(value, payload)  # type: ignore[arg-type]
    tree[0] = TUPLE
    return tree


def _encode_dict(value: dict[Any, Any], payload: OutgoingPayload) -> Tree:
    _enter_encoding(payload)
    tree: list[Tree] = [DICT]
    for key, element in value.items():
        tree.append(_encode_value(key, payload))
        tree.append(_encode_value(element, payload))
    payload.depth -= 1
    return tree


def _encode_scalar(value: np.generic, payload: OutgoingPayload) -> Tree:
    return [SCALAR, encode_dtype(value.dtype), value.tobytes()]


def _encode_array(value: Array, payload: OutgoingPayload) -> Tree:
    if payload.narrows and value.dtype == np.float32:
        narrowed = value.astype(np.float16)
        payload.narrowed_bytes += narrowed.nbytes
        return [NARROWED, _encode_array(narrowed, payload)]
    dtype = encode_dtype(value.dtype)
    offset = payload.nbytes
    if value.flags.c_contiguous:
        payload.arrays.append((offset, value))
        payload.nbytes = (offset + value.nbytes + ALIGN - 1) & -ALIGN
        return [ARRAY, dtype, value.shape, offset]
    # The order of axes in memory is kept, because the bits of sums over an array depend on it.
    axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
    tree: list[Tree] = _encode_array(np.ascontiguousarray(value.transpose(axes)), payload)
    tree.append(axes)
    return tree


def _encode_columns(columns: Mapping[str, Array], payload: OutgoingPayload) -> list[Tree]:
    tree: list[Tree] = []
    for name, array in columns.items():
        tree.append(name)
        tree.append(_encode_value(array, payload))
    return tree


def _encode_batch(value: Batch, payload: OutgoingPayload) -> Tree:
    return [BATCH, *_encode_columns(value.columns, payload)]


def _encode_state(value: State, payload: OutgoingPayload) -> Tree:
    arrays = _encode_columns(value.arrays, payload)
    narrows, payload.narrows = payload.narrows, False  # the rest of a state is never rounded
    command = _encode_dict(dict(value.command), payload)
    whole = value.whole
    saved = [] if whole is None else [_encode_columns(whole.arrays, payload), whole.text]
    payload.narrows = narrows
    return [STATE, arrays, command, int(value.version), encode_clock(value.clock), *saved]


def encode_clock(clock: Clock) -> Tree:
    """Return a flat list of each node followed by its three counts."""
    tree: list[Tree] = [CLOCK]
    for node, count in clock.counts.items():
        tree += (node, int(count[0]), int(count[1]), int(count[2]))
    return tree


_PLAIN = frozenset({type(None), bool, float, str, bytes})
_ENCODERS: dict[type, Callable[[Any, OutgoingPayload], Tree]] = {
    int: _encode_int,
    list: _encode_list,
    tuple: _encode_tuple,
    dict: _encode_dict,
    np.ndarray: _encode_array,
    np.str_: lambda value, payload: [TEXT, str(value)],
    np.bytes_: lambda value, payload: [BYTES, bytes(value)],
    Batch: _encode_batch,
    State: _encode_state,
    Clock: lambda value, payload: encode_clock(value),
}


# decoding


class IncomingPayload:
    """A received payload: a range of memory, or message parts that hold one array each."""

    __slots__ = ("depth", "memory", "nbytes", "parts", "start", "widened_bytes")

    def __init__(self, memory: Memory, start: int, nbytes: int) -> None:
        if start + nbytes > len(memory):
            raise RefusedMessage("payload")
        self.memory, self.start, self.nbytes = memory, start, nbytes
        self.parts: dict[int, Memory] | None = None  # by offset
        self.depth = 0  # of the value that is being decoded
        self.widened_bytes = 0  # allocated for narrowed arrays

    @classmethod
    def from_parts(cls, parts: Sequence[Memory]) -> IncomingPayload:
        """Return the payload whose non-empty arrays are these parts."""
        payload = cls(b"", 0, 0)
        payload.parts = {}
        offset = 0
        for part in parts:
            payload.parts[offset] = part
            offset = (offset + len(part) + ALIGN - 1) & -ALIGN
        payload.nbytes = offset
        return payload

    def locate(self, offset: int, nbytes: int) -> tuple[Memory, int]:
        """Return the memory that holds the array at `offset`, and where the array begins in it."""
        if self.parts is None:
            if offset + nbytes > self.nbytes:
                raise RefusedMessage("payload")
            return self.memory, self.start + offset
        part = self.parts.get(offset, b"")
        if len(part) != nbytes:
            raise RefusedMessage("payload")
        return part, 0


def decode(tree: Tree, payload: IncomingPayload) -> Any:
    """Return the value of a tree; raise `RefusedMessage` if the tree is invalid."""
    try:
        return _decode_value(tree, payload)
    except (TypeError, ValueError, IndexError, OverflowError, RecursionError, MemoryError):
        raise RefusedMessage("malformed") from None


def _decode_value(tree: Tree, payload: IncomingPayload) -> Any:
    if type(tree) is not list:
        return tree
    kind = tree[0]
    if type(kind) is not int or not 0 <= kind < len(_DECODERS):
        raise RefusedMessage("kind")
    return _DECODERS[kind](tree, payload)


def _enter_decoding(payload: IncomingPayload) -> None:
    payload.depth += 1
    if payload.depth > MAX_DEPTH:
        raise RefusedMessage("depth")


def _decode_list(tree: list[Tree], payload: IncomingPayload) -> list[Any]:
    _enter_decoding(payload)
    value = [
        _decode_value(element, payload) if type(element) is list else element
        for element in tree[1:]
    ]
    payload.depth -= 1
    return value


def _decode_tuple(tree: list[Tree], payload: IncomingPayload) -> tuple[Any, ...]:
    return tuple(_decode_list(tree, payload))


def _decode_dict(tree: list[Tree], payload: IncomingPayload) -> dict[Any, Any]:
    flat = _decode_list(tree, payload)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _decode_int(tree: list[Tree], payload: IncomingPayload) -> int:
    return int.from_bytes(_require(tree[1], bytes), "little", signed=True)


def _decode_scalar(tree: list[Tree], payload: IncomingPayload) -> Any:
    dtype, data = decode_dtype(tree[1]), _require(tree[2], bytes)
    if dtype.itemsize != len(data):
        raise RefusedMessage("scalar")
    return np.ndarray((), dtype, data)[()]


def _decode_array(tree: list[Tree], payload: IncomingPayload) -> Array:
    _, code, shape, offset = tree[:4]
    dtype = decode_dtype(code)
    if type(offset) is not int or offset < 0:
        raise RefusedMessage("payload")
    nbytes = prod(decode_shape(shape)) * dtype.itemsize
    memory, start = payload.locate(offset, nbytes) if nbytes else (b"", 0)
    array: Array = np.ndarray(shape, dtype, memory, start)
    if len(tree) > 4:
        array = array.transpose(_inverse_axes(tree[4]))
    return array


def _decode_narrowed(tree: list[Tree], payload: IncomingPayload) -> Array:
    narrowed = _require(_decode_value(tree[1], payload), np.ndarray)
    payload.widened_bytes += 2 * narrowed.nbytes
    if narrowed.dtype != np.float16 or payload.widened_bytes > 2 * payload.nbytes:
        raise RefusedMessage("narrowed")
    array: Array = narrowed.astype(np.float32)
    array.flags.writeable = False
    return array


def _inverse_axes(axes: Any) -> list[int]:
    if type(axes) is not list or not all(type(axis) is int for axis in axes):
        raise RefusedMessage("axes")
    return sorted(range(len(axes)), key=axes.__getitem__)


def _decode_columns(tree: Sequence[Tree], payload: IncomingPayload) -> dict[str, Array]:
    names, arrays = tree[::2], tree[1::2]
    if len(names) != len(arrays) or len(set(names)) != len(names):
        raise RefusedMessage("columns")
    return {
        _require(n, str): _require(_decode_value(a, payload), np.ndarray)
        for n, a in zip(names, arrays)  # noqa: B905
    }


def _decode_batch(tree: list[Tree], payload: IncomingPayload) -> Batch:
    return Batch(_decode_columns(tree[1:], payload))


def _decode_state(tree: list[Tree], payload: IncomingPayload) -> State:
    _, arrays, command, version, clock, *saved = tree
    command = _require(_decode_value(command, payload), dict)
    version = _require(_decode_value(version, payload), int)
    columns = _decode_columns(_require(arrays, list), payload)
    return State(columns, command, version, decode_clock(clock), _decode_whole(saved, payload))


def _decode_whole(saved: list[Tree], payload: IncomingPayload) -> SavedState | None:
    if not saved:
        return None
    arrays, text = saved
    columns = _decode_columns(_require(arrays, list), payload)
    return SavedState(columns, _require(text, str))


def decode_clock(tree: Tree) -> Clock:
    """Return the clock of a tree, which may be invalid."""
    if type(tree) is not list or len(tree) % 4 != 1 or tree[0] != CLOCK:
        raise RefusedMessage("clock")
    counts = {}
    for i in range(1, len(tree), 4):
        node, *count = tree[i : i + 4]
        if type(node) is not str or not all(type(n) is int and n >= 0 for n in count):
            raise RefusedMessage("clock")
        counts[node] = Count(*count)
    return Clock(counts) if counts else EMPTY_CLOCK


def _require(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise RefusedMessage("malformed")
    return value


_DECODER_OF: dict[int, Callable[[list[Tree], IncomingPayload], Any]] = {
    LIST: _decode_list,
    TUPLE: _decode_tuple,
    DICT: _decode_dict,
    INT: _decode_int,
    SCALAR: _decode_scalar,
    TEXT: lambda tree, payload: np.str_(_require(tree[1], str)),
    BYTES: lambda tree, payload: np.bytes_(_require(tree[1], bytes)),
    ARRAY: _decode_array,
    BATCH: _decode_batch,
    STATE: _decode_state,
    CLOCK: lambda tree, payload: decode_clock(tree),
    NARROWED: _decode_narrowed,
}
_DECODERS = [_DECODER_OF[kind] for kind in range(len(_DECODER_OF))]
