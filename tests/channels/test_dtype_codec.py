"""Dtypes are decoded to equal dtypes, and invalid codes are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from flowrl.channels.dtype_codec import decode_dtype, decode_shape, encode_dtype
from flowrl.channels.errors import RefusedMessage, UnsendableValue


def nested(depth: int) -> Any:
    """Return the code of nested structures."""
    code: Any = "<f4"
    for _ in range(depth):
        code = [["x", code, []]]
    return code


@given(hn.scalar_dtypes())
def test_the_code_of_a_scalar_dtype_is_a_string_that_decodes_to_it(dtype: np.dtype[Any]) -> None:
    code = encode_dtype(dtype)
    assert isinstance(code, str)
    assert decode_dtype(code) == dtype


def test_a_packed_structure_is_decoded_with_names_shapes_and_order() -> None:
    dtype = np.dtype([("b", ">i2", (2, 3)), ("a", [("x", "<f8"), ("y", "S3")])])
    code = encode_dtype(dtype)
    assert code == [["b", ">i2", [2, 3]], ["a", [["x", "<f8", []], ["y", "|S3", []]], []]]
    found = decode_dtype(code)
    assert found == dtype
    assert found.names == ("b", "a")
    assert found.itemsize == dtype.itemsize


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype(object),
        np.dtype([("x", object)]),
        np.dtype({"names": ["a", "b"], "formats": ["i1", "i8"], "offsets": [0, 8]}),
        np.dtype([("a", "i1"), ("b", "i8")], align=True),
    ],
    ids=["object", "object within", "offsets", "aligned"],
)
def test_a_dtype_that_would_be_decoded_differently_is_unsendable(dtype: np.dtype[Any]) -> None:
    with pytest.raises(
        UnsendableValue, match=r"cannot send an array of dtype .*packed structures can"
    ):
        encode_dtype(dtype)


@pytest.mark.parametrize(
    "code",
    [
        *["O", "|O", "|O8", "f4", "<f", "<f3", "<f4 ", "<f4\n", "<q8", "<i99", "<S0x", "<M8[", ""],
        *["<M8[xx]", "<U999999999", "<V9999999999", "<f4,<f4", "(2,)<f4", "float32"],
        *[None, 4, 4.0, True, b"<f4", {}, ("x", "<f4", [])],
        *[["<f4"], [["x", "<f4"]], [["x", "<f4", [], 1]], [[1, "<f4", []]], [("x", "<f4", [])]],
        *[[["x", "<f4", [-1]]], [["x", "<f4", [1.0]]], [["x", "<f4", [True]]], [["x", "<f4", 2]]],
        *[[["x", "<f4", [1 << 31]]], [["x", "<f4", [1 << 30] * 9]], [["x", "|O", []]]],
        [["x", "<f4", []], ["x", "<f4", []]],
        [[f"x{k}", "<f4", []] for k in range(257)],
        nested(9),
    ],
    ids=repr,
)
def test_a_hostile_code_is_refused(code: Any) -> None:
    with pytest.raises(RefusedMessage):
        decode_dtype(code)


def test_structures_may_be_as_deep_and_as_wide_as_the_limits_say() -> None:
    assert decode_dtype(nested(8)).itemsize == 4
    wide = [[f"x{k}", "<f4", []] for k in range(256)]
    assert decode_dtype(wide).itemsize == 256 * 4


codes = st.recursive(
    st.none() | st.integers() | st.text("<>|bifcSUVM0148[]msx", max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=12,
)


@given(codes)
def test_any_code_is_a_dtype_without_objects_or_refused(code: Any) -> None:
    try:
        dtype = decode_dtype(code)
    except RefusedMessage:
        return
    assert not dtype.hasobject
    assert np.empty(0, dtype).dtype == dtype


@given(st.lists(st.integers(0, 2**40), max_size=64))
def test_a_shape_is_a_list_of_whole_numbers(shape: list[int]) -> None:
    assert decode_shape(shape) == tuple(shape)


@pytest.mark.parametrize("shape", [None, 3, (3,), "3", [-1], [1.0], [True], [None], [0] * 65])
def test_a_hostile_shape_is_refused(shape: Any) -> None:
    with pytest.raises(RefusedMessage):
        decode_shape(shape)
