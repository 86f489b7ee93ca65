"""The newest rows of a stream."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.nodes.recent_rows import RecentRows


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(0, 9), max_size=12), st.integers(0, 12))
def test_the_newest_rows_are_held_in_order(size: int, tokens: list[int], saved_after: int) -> None:
    held, expected = RecentRows(size), np.zeros(0, np.int64)
    for k, rows in enumerate(tokens):
        values = expected.size + np.arange(rows)
        held.add({"x": values, "y": np.stack([values, -values], 1)})
        expected = np.concatenate([expected, values])
        if k == saved_after:
            saved, held = held.state_dict(), RecentRows(size)
            held.load_state_dict(saved)
    assert len(held) == min(size, expected.size)
    if len(held):
        np.testing.assert_array_equal(held.all()["x"], expected[-size:])
        np.testing.assert_array_equal(held.all()["y"][:, 1], -expected[-size:])


def test_memory_grows_with_the_rows() -> None:
    held = RecentRows(10**9)
    held.add({"x": np.zeros((3, 1000), np.float32)})
    assert held.take(np.array([2]))["x"].shape == (1, 1000)
    with pytest.raises(IndexError):
        held.take(np.array([3]))
