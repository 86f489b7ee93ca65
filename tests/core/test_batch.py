"""Columns and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.batch import Batch, Column, as_batch, is_aligned, row_bytes
from flowrl.core.state import State


def batch(rows: int = 4, first: int = 0) -> Batch:
    n = np.arange(first, first + rows)
    return Batch({"obs": np.stack([n, -n], 1).astype(np.float32), "n": n})


def same(one: Batch, other: Batch) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[k], other[k]) for k in one)


def test_the_arrays_of_a_batch_become_read_only() -> None:
    mine = np.zeros(3)
    found = Batch({"x": mine})
    for array in (mine, found["x"], found.columns["x"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("index", [slice(1, 3), np.array([2, 0]), np.array([True, False] * 2)])
def test_taken_rows_are_read_only(index: object) -> None:
    taken = batch().take(index)
    with pytest.raises(ValueError, match="read-only"):
        taken["obs"][0, 0] = 9
    assert np.array_equal(taken["obs"][:, 0], taken["n"])


def test_a_slice_is_a_view_and_a_gather_is_a_copy() -> None:
    whole = batch()
    assert np.shares_memory(whole.take(slice(2, 4))["obs"], whole["obs"])
    assert not np.shares_memory(whole.take(np.array([1, 2]))["obs"], whole["obs"])


def test_columns_of_different_lengths_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="column 'b' has 2 rows; the others have 3"):
        Batch({"a": np.zeros(3), "b": np.zeros(2)})


def test_the_error_of_a_missing_column_lists_the_columns() -> None:
    with pytest.raises(KeyError, match="no column 'reward'; there are obs, n"):
        batch()["reward"]
    with pytest.raises(KeyError, match="no column 'x'"):
        batch().only(["obs", "x"])


def test_a_batch_without_columns_has_no_rows() -> None:
    assert (len(Batch({})), Batch({}).schema, Batch({}).nbytes) == (0, {}, 0)


def test_the_repr_of_a_batch_has_its_rows_and_columns() -> None:
    assert repr(batch(3)) == "Batch(3 rows; obs: float32[2], n: int64)"
    assert ("n" in batch(), "m" in batch(), list(batch())) == (True, False, ["obs", "n"])


def test_bytes_are_those_of_the_schema_times_the_rows() -> None:
    found = batch(5)
    assert found.nbytes == 5 * row_bytes(found.schema) == 5 * (2 * 4 + 8)


def test_replacing_a_column_leaves_the_others_and_the_old_batch() -> None:
    old = batch()
    new = old.replace(n=np.zeros(4), more=np.ones(4))
    assert list(new) == ["obs", "n", "more"]
    assert new["obs"] is old["obs"]
    assert old["n"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="column 'n' has 3 rows; the others have 4"):
        old.replace(n=np.zeros(3))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_slices_concatenate_to_the_whole(lengths: list[int]) -> None:
    whole = batch(sum(lengths))
    ends = np.cumsum(lengths)
    parts = [whole.take(slice(end - n, end)) for end, n in zip(ends, lengths, strict=True)]
    assert same(Batch.concat(parts), whole)
    assert Batch.concat(parts).schema == whole.schema


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize(("rows", "shape"), [(4, ()), (3, ()), (5, (3,)), (8, (2, 3))])
@pytest.mark.parametrize("order", ["C", "F"])
def test_parts_are_the_batches_of_slices(
    dtype: str, rows: int, shape: tuple[int, ...], order: Any
) -> None:
    """They have the bytes, the order of axes and the alignment that a batch of each slice has."""
    values = np.random.default_rng(0).integers(0, 2, (3 * rows, *shape)).astype(dtype, order=order)
    whole = Batch({"x": values, "n": np.arange(3 * rows)})
    for k, part in enumerate(whole.split(3)):
        expected = whole.take(slice(k * rows, (k + 1) * rows))
        assert same(part, expected)
        assert len(part) == rows
        assert part["x"].strides == expected["x"].strides
        assert is_aligned(part["x"])
        assert not part["x"].flags.writeable


def test_parts_are_views() -> None:
    whole = batch(8)
    assert all(np.shares_memory(part["obs"], whole["obs"]) for part in whole.split(4))
    assert whole.split(1) == [whole]


def test_parts_of_different_size_are_refused() -> None:
    with pytest.raises(ValueError, match="8 rows cannot be split into 3 equal parts"):
        batch(8).split(3)


def test_batches_are_concatenated_by_column_names() -> None:
    turned = Batch({"n": np.array([7]), "obs": np.array([[7, -7]], np.float32)})
    joined = Batch.concat([batch(2), turned])
    assert joined["n"].tolist() == [0, 1, 7]
    assert joined["obs"][:, 1].tolist() == [0, -1, -7]
    with pytest.raises(ValueError, match=r"columns differ: \['n', 'obs'\] and \['n'\]"):
        Batch.concat([batch(), batch().only(["n"])])


def test_the_concatenation_of_one_batch_is_the_batch_itself() -> None:
    one = batch()
    assert Batch.concat([one]) is one


@pytest.mark.parametrize(
    ("column", "text", "size"),
    [
        (Column("float32"), "float32", 4),
        (Column("uint8", (84, 84)), "uint8[84,84]", 84 * 84),
        (Column("float64", (0,)), "float64[0]", 0),
        (Column("bool"), "bool", 1),
    ],
)
def test_a_column_has_the_type_and_the_size_of_a_row(column: Column, text: str, size: int) -> None:
    assert (str(column), column.row_bytes) == (text, size)
    made = column.empty(3, 2)
    assert (made.shape, str(made.dtype)) == ((3, 2, *column.shape), column.dtype)


def test_bounds_do_not_make_columns_unequal() -> None:
    assert Column("int64", n=2) == Column("int64", n=5, low=0.0, high=4.0)
    assert Column("int64") != Column("int32")
    assert Column("int64") != Column("int64", (1,))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[1:],
        lambda a: a[::2],
        lambda a: a[:, 1:3],
        lambda a: a[::-1],
        lambda a: a.T[1:],
        lambda a: a[:, 2],
        lambda a: a[3:, 1:2].reshape(-1),
    ],
    ids=["later rows", "gaps", "columns", "reversed", "transposed", "one", "flat"],
)
def test_columns_are_contiguous_and_aligned(view: Any) -> None:
    """Sums are taken in another order where there are gaps, products where memory begins unevenly."""
    given = view(np.arange(77, dtype=np.float32).reshape(11, 7))
    column = Batch({"x": given})["x"]
    np.testing.assert_array_equal(column, given)
    assert column.flags.forc
    assert column.ctypes.data % 16 == 0
    assert not column.flags.writeable


def test_the_arrays_of_a_state_are_contiguous_and_aligned() -> None:
    weights = np.arange(77, dtype=np.float32).reshape(11, 7)
    found = State({"w": weights, "part": weights[1:, 2:5], "bias": weights[3, 1:]}).arrays
    assert found["w"] is weights
    np.testing.assert_array_equal(found["part"], weights[1:, 2:5])
    assert all(array.flags.forc and array.ctypes.data % 16 == 0 for array in found.values())


def test_an_aligned_view_is_not_copied() -> None:
    table = np.zeros((100, 4), np.float32)
    assert np.shares_memory(Batch({"x": table[8:]})["x"], table)
    assert np.shares_memory(Batch({"x": table}).take(slice(5, 9))["x"], table)


# data that is given by hand


def test_a_list_of_rows_is_a_batch() -> None:
    rows = [
        {"obs": np.zeros(2), "action": 1, "last": False},
        {"obs": [1, 2], "action": 0, "last": True},
    ]
    found = as_batch("here", rows)
    assert repr(found) == "Batch(2 rows; obs: float32[2], action: int64, last: bool)"
    np.testing.assert_array_equal(found["obs"], [[0, 0], [1, 2]])


def test_columns_by_name_are_copied() -> None:
    column = np.zeros(3)
    found = as_batch("here", {"reward": column, "n": [1, 2, 3]})
    assert repr(found) == "Batch(3 rows; reward: float32, n: int64)"
    column[0] = 1  # still writable
    assert found["reward"][0] == 0


def test_a_batch_stays_itself() -> None:
    one = batch()
    assert as_batch("here", one) is one


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ([1, 2], TypeError, r"here: \[1, 2\] is not a batch; expected a Batch, columns by name"),
        ([], TypeError, r"here: \[\] is not a batch; .* or a list of rows"),
        (np.zeros(3), TypeError, "is not a batch"),
        ([{"n": 1}, {"m": 1}], ValueError, "here: row 1 has m; expected n, as in row 0"),
        (
            [{"n": [1]}, {"n": [1, 2]}],
            ValueError,
            "the column 'n' is .*; expected numbers, in the same",
        ),
        ({"n": [None]}, ValueError, r"the column 'n' is \[None\]; expected numbers"),
        ({"n": 3}, ValueError, "the column 'n' is 3; expected numbers"),
    ],
)
def test_what_is_no_batch_is_refused_in_words(
    data: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        as_batch("here", data)


def test_rows_and_batches_are_each_others_inverse() -> None:
    batch = Batch(
        {"obs": np.arange(6, dtype=np.float32).reshape(3, 2), "done": np.array([0, 0, 1])}
    )
    rows = batch.to_rows()
    assert [row["done"] for row in rows] == [0, 0, 1]
    assert rows[2]["obs"].tolist() == [4, 5]
    again = Batch.from_rows(rows)
    assert again.schema == batch.schema
    assert all((again[name] == batch[name]).all() for name in batch)
    with pytest.raises(TypeError, match=r"^Batch.from_rows: 3 is not a batch; expected"):
        Batch.from_rows(3)  # type: ignore[arg-type]
