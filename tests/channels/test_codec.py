"""Values are decoded exactly as they were encoded, unsendable values are named, and invalid bytes are refused."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from flowrl.channels import RefusedMessage, UnsendableValue
from flowrl.channels.codec import (
    ALIGN,
    ARRAY,
    MAX_DEPTH,
    NARROWED,
    IncomingPayload,
    decode,
    encode,
)
from flowrl.channels.messages import SURROGATES, HeaderCodec, attach_payloads
from flowrl.core.batch import Batch
from flowrl.core.saved_state import SavedState
from flowrl.core.state import EMPTY_CLOCK, Clock, Count, State
from tests.quick_selection import examples


def encode_and_decode(value: Any, in_parts: bool = False, narrows: bool = False) -> Any:
    """Encode and decode a value through bytes: a message body, or one message part for each array."""
    tree, payload = encode(value, narrows)
    packed = msgpack.packb(tree, unicode_errors=SURROGATES)
    tree = msgpack.unpackb(packed, unicode_errors=SURROGATES)
    if in_parts:
        frames = [np.frombuffer(bytes(frame), np.uint8) for frame in payload.as_parts()]
        return decode(tree, IncomingPayload.from_parts(frames))
    body = b"0" * ALIGN + payload.as_bytes()
    return decode(tree, IncomingPayload(body, ALIGN, len(body) - ALIGN))


def same(a: Any, b: Any) -> bool:
    """Return whether type, dtype, shape, order in memory and value are equal; NaN equals NaN."""
    if isinstance(a, np.generic) and isinstance(b, np.generic):  # a longlong is an int64
        return a.dtype == b.dtype and _equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape) and _equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, Batch):
        return same(dict(a.columns), dict(b.columns))
    if isinstance(a, State):
        mine, its = ((dict(s.arrays), dict(s.command), s.version, s.clock) for s in (a, b))
        return same(mine, its)
    if isinstance(a, Clock):
        return a.counts == b.counts
    return a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def _equal(a: Any, b: Any) -> bool:
    """Return whether the bits are equal. Long doubles are compared by value, because their bytes have padding."""
    if a.dtype.char in "gG":
        return bool(np.array_equal(a, b, equal_nan=True))
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _titled(dtype: np.dtype) -> bool:
    """Return whether a field has a title, a second name that numpy deprecates."""
    if dtype.subdtype:
        return _titled(dtype.base)
    return any(len(f) > 2 or _titled(f[0]) for f in (dtype.fields or {}).values())


DTYPES = st.one_of(
    hn.scalar_dtypes(),
    hn.byte_string_dtypes(max_len=5, min_len=1),
    hn.unicode_string_dtypes(max_len=5, min_len=1),
    hn.array_dtypes(),
    hn.nested_dtypes(
        st.one_of(hn.scalar_dtypes(), hn.byte_string_dtypes(min_len=1, max_len=4)), max_leaves=3
    ),
)
ARRAYS = DTYPES.filter(lambda dtype: not _titled(dtype)).flatmap(
    lambda dtype: hn.arrays(
        dtype.base if dtype.shape else dtype,
        hn.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(),
    st.text(),
    st.text(st.characters(categories=["Cs"])),
)
VALUES = st.recursive(
    st.one_of(PLAIN, ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.one_of(st.text(), st.integers(), st.tuples(st.booleans())), inner, max_size=3
        ),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(VALUES, st.booleans())
@examples(300)
def test_values_are_decoded_exactly(value: Any, in_parts: bool) -> None:
    assert same(encode_and_decode(value, in_parts), value)


@pytest.mark.parametrize("code", np.typecodes["All"].replace("O", ""))
def test_every_dtype_is_decoded_exactly(code: str) -> None:
    dtype = np.dtype({"S": "S3", "U": "U3", "V": "V3", "M": "M8[s]", "m": "m8[s]"}.get(code, code))
    for order in "<>":
        array = np.zeros((2, 3), dtype.newbyteorder(order))
        assert same(encode_and_decode(array), array)
    assert same(encode_and_decode(array[0, 0]), array[0, 0])


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        2**64,
        -(2**63),
        -(2**63) - 1,
        10**100,
        -0.0,
        math.inf,
        "\ud800",
        "",
        b"",
        np.str_("text"),
        np.bytes_(b"bytes"),
        np.datetime64("NaT"),
        np.timedelta64(3),
        np.bool_(True),
        np.void(b"12"),
        np.longdouble("0.1"),
        np.float64(1),
        [],
        (),
        {},
        [[]],
        {(1, 2): [None]},
        EMPTY_CLOCK,
    ],
    ids=lambda value: type(value).__name__,
)
def test_special_values_are_decoded_exactly(value: Any) -> None:
    back = encode_and_decode(value)
    assert same(back, value)
    if isinstance(value, float):
        assert math.copysign(1, back) == math.copysign(1, value)


def test_a_state_is_decoded_with_its_command_version_and_clock() -> None:
    clock = Clock({"learner": Count(0, 0, 7), "collector#1": Count(96, 3, 0)})
    state = State({"w": np.ones((3, 4), np.float32), "b": np.array(1.0)}, {"eps": 0.1}, 7, clock)
    assert same(encode_and_decode(state), state)


def test_a_batch_is_decoded_with_its_columns_in_order() -> None:
    batch = Batch({"z": np.arange(4), "a": np.zeros((4, 0)), "m": np.ones((4, 2, 2), ">f2")})
    back = encode_and_decode(batch)
    assert same(back, batch)
    assert back.rows == 4
    assert same(encode_and_decode(Batch({})), Batch({}))


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_the_order_of_axes_in_memory_is_kept(axes: tuple[int, ...]) -> None:
    array = np.arange(24.0).reshape(2, 3, 4).transpose(axes)
    back = encode_and_decode(array)
    assert back.strides == array.strides
    assert same(back, array)


def test_arrays_in_a_payload_are_aligned_and_not_copied() -> None:
    tree, payload = encode([np.arange(3, dtype=np.uint8), np.arange(5.0)])
    assert [begin % ALIGN for begin, _ in payload.arrays] == [0, 0]
    body = payload.as_bytes()
    _, doubles = decode(msgpack.unpackb(msgpack.packb(tree)), IncomingPayload(body, 0, len(body)))
    assert np.shares_memory(doubles, np.frombuffer(body, np.uint8))
    assert not doubles.flags.writeable


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1, 2}, "cannot send a builtins.set; tokens hold None, booleans"),
        ([object()], "cannot send a builtins.object"),
        (np.array([None]), "cannot send an array of dtype object"),
        (np.ma.array([1]), "cannot send a numpy.ma.MaskedArray"),
        (Count(1, 2, 3), "cannot send a flowrl.core.state.Count"),
        (
            np.zeros(2, np.dtype({"names": ["a"], "formats": ["i4"], "itemsize": 16})),
            "cannot send an array of",
        ),
    ],
    ids=lambda v: type(v).__name__,
)
def test_unsendable_values_are_named(value: Any, says: str) -> None:
    with pytest.raises(UnsendableValue) as error:
        encode(value)
    assert str(error.value).startswith(says)


def test_values_nested_too_deeply_are_named() -> None:
    value: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert same(encode_and_decode(value), value)
    with pytest.raises(UnsendableValue, match=f"nested more than {MAX_DEPTH} deep"):
        encode([value])


HALVES = hn.arrays(np.float16, hn.array_shapes(min_dims=0, max_dims=3, min_side=0))


@pytest.mark.slow
@given(st.lists(HALVES, min_size=1, max_size=3), st.booleans())
@examples(100)
def test_numbers_of_half_precision_are_narrowed_without_a_loss(halves: Any, in_parts: bool) -> None:
    arrays = [array.astype(np.float32) for array in halves]
    value = [*arrays, arrays[0].T, arrays[0].astype(np.float64), np.arange(3), 0.1]
    assert same(encode_and_decode(value, in_parts, narrows=True), value)
    plain, narrowed = encode(arrays)[1], encode(arrays, narrows=True)[1]
    assert narrowed.narrowed_bytes == sum(array.nbytes // 2 for array in arrays)
    assert narrowed.nbytes <= plain.nbytes


def test_of_a_state_only_the_arrays_are_narrowed() -> None:
    third = np.array([1 / 3], np.float32)
    half = third.astype(np.float16).astype(np.float32)
    state = State({"w": half}, {"third": third}, whole=SavedState({"w": third}, "{}"))  # type: ignore[dict-item]
    back, after = encode_and_decode([state, half], narrows=True)
    assert same([back, after], [state, half])
    assert same(dict(back.whole.arrays), {"w": third})
    assert encode([state, half], narrows=True)[1].narrowed_bytes == 2 * half.nbytes // 2


# hostile bytes

TREES = st.recursive(
    st.one_of(
        PLAIN.filter(lambda v: not isinstance(v, int) or abs(v) < 2**63),
        st.sampled_from(range(-1, 12)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.tuples(st.sampled_from(range(12)), inner, inner, inner).map(list),
        st.tuples(
            st.just(ARRAY),
            st.sampled_from(
                [
                    "<f8",
                    "|O",
                    "<f4,<f4",
                    "<M8[zz]",
                    "|V0",
                    "<U0",
                    "<f999999999",
                    [["a", "<i4", [2]]],
                    [],
                ]
            ),
            st.lists(st.one_of(st.integers(-1, 9), st.just(2**62)), max_size=4),
            st.integers(-64, 200),
            st.lists(st.integers(-3, 5), max_size=4),
        ).map(list),
    ),
    max_leaves=12,
)


@given(TREES)
@examples(500)
def test_a_hostile_tree_is_refused_or_harmless(tree: Any) -> None:
    body = bytes(128)
    for payload in (
        IncomingPayload(body, 0, 128),
        IncomingPayload.from_parts([np.zeros(64, np.uint8)]),
    ):
        with suppress(RefusedMessage):
            decode(tree, payload)


@given(st.binary(max_size=200), st.binary(max_size=60))
@examples(300)
def test_hostile_bytes_are_refused_or_harmless(garbage: bytes, tail: bytes) -> None:
    heads = HeaderCodec(b"run", "me")
    for head in (garbage, heads.header([garbage], 0), heads.header([], len(garbage)) + tail):
        with suppress(RefusedMessage):
            *_, body_bytes, items = heads.read(head)
            attach_payloads(items, body_bytes, [np.frombuffer(tail, np.uint8)], None, 1000)


@given(st.integers(0, 300), st.integers(0, 255))
@examples(300)
def test_a_damaged_message_is_refused_or_harmless(at: int, byte: int) -> None:
    heads = HeaderCodec(b"run", "me")
    value = Batch({"x": np.arange(5.0), "y": np.zeros((5, 2), np.int8)})
    tree, payload = encode(value)
    body = payload.as_bytes()
    head = bytearray(
        heads.header([heads.pack([0, "channel", 0, 0, None, tree, len(body), 0])], len(body))
    )
    head[at % len(head)] = byte
    with suppress(RefusedMessage):
        *_, body_bytes, items = heads.read(bytes(head))
        for item in attach_payloads(items, body_bytes, [np.frombuffer(body, np.uint8)], None, 0):
            decode(item[5], item[6])


def test_an_array_cannot_reach_beyond_its_payload() -> None:
    memory = b"the token before" + bytes(64) + b"the token after!"
    with pytest.raises(RefusedMessage, match="payload"):
        decode([ARRAY, "|u1", [65], 0], IncomingPayload(memory, 16, 64))
    with pytest.raises(RefusedMessage, match="payload"):
        decode([ARRAY, "|u1", [1], 64], IncomingPayload(memory, 16, 64))
    with pytest.raises(RefusedMessage, match="payload"):
        decode([ARRAY, "<f8", [2**61], 0], IncomingPayload(memory, 16, 64))


def test_objects_are_refused() -> None:
    for dtype in ("|O", "O", "|O8", "object", "<f4,|O", [["a", "|O", []]]):
        with pytest.raises(RefusedMessage, match="dtype"):
            decode([ARRAY, dtype, [1], 0], IncomingPayload(bytes(64), 0, 64))


def test_narrowed_arrays_take_no_more_memory_than_the_message_explains() -> None:
    one = [NARROWED, [ARRAY, "<f2", [32], 0]]
    assert decode(one, IncomingPayload(bytes(64), 0, 64)).nbytes == 128
    with pytest.raises(RefusedMessage, match="narrowed"):
        decode([0, one, one], IncomingPayload(bytes(64), 0, 64))
    with pytest.raises(RefusedMessage, match="narrowed"):
        decode([NARROWED, [ARRAY, "<f8", [8], 0]], IncomingPayload(bytes(64), 0, 64))
