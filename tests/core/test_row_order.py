"""The rows of a token are split among the replicas of a group."""

import numpy as np
import pytest

from flowrl.core.batch import Batch
from flowrl.core.row_order import split_rows


def parts_of(rows: Batch, count: int, in_order: bool = False) -> list[list[int]]:
    parts = split_rows(rows, count, in_order)
    assert all(part["n"].ctypes.data % 16 == 0 for part in parts)
    return [part["n"].tolist() for part in parts]


def numbers(n: int, *last: int) -> Batch:
    ends = np.isin(np.arange(n), last)
    return Batch({"n": np.arange(n, dtype=np.float32), "last": ends})


def test_rows_are_split_evenly_and_in_order() -> None:
    assert parts_of(numbers(7), 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert parts_of(numbers(3), 3) == [[0], [1], [2]]


def test_a_part_in_the_order_of_time_ends_with_its_fragment() -> None:
    assert parts_of(numbers(8, 4, 7), 2, in_order=True) == [[0, 1, 2, 3, 4], [5, 6, 7]]
    assert parts_of(numbers(9, 1, 4, 8), 2, in_order=True) == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]


def test_without_an_end_nearby_a_part_is_cut_off_and_marked() -> None:
    first, second = split_rows(numbers(8, 0, 7), 2, in_order=True)
    assert first["last"].tolist() == [True, False, False, True]
    assert second["last"].tolist() == [False, False, False, True]


def test_fewer_rows_than_replicas_are_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 2 rows cannot be split among 3 replicas; "):
        split_rows(numbers(2), 3, in_order=False)
