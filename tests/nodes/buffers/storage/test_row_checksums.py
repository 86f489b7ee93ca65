"""The checksums of rows find the changes that a sum of products alone would miss."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from flowrl.nodes.buffers.storage.row_checksums import RowChecksum


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "uint8"])
def test_two_flips_of_the_same_bit_do_not_cancel_out(dtype: str) -> None:
    """The product by an odd number keeps the highest bit, so two flips of it would add up to 2^64, which is 0."""
    rows = np.random.default_rng(0).integers(0, 200, (1, 6)).astype(dtype)
    checksum = RowChecksum(rows[0].nbytes)
    [before] = checksum.of(rows)
    for i, j in itertools.combinations(range(rows.nbytes), 2):
        for bit in (0, 6, 7):
            damaged = rows.copy()
            content = damaged.view(np.uint8).reshape(-1)
            content[[i, j]] ^= np.uint8(1 << bit)
            assert checksum.of(damaged)[0] != before, (i, j, bit)


def test_equal_changes_of_many_rows_change_every_checksum() -> None:
    rows = np.random.default_rng(1).normal(size=(1000, 8))
    checksum = RowChecksum(rows[0].nbytes)
    damaged = rows.copy()
    damaged[:, [2, 5]] *= -1  # the signs of two numbers
    assert (checksum.of(damaged) != checksum.of(rows)).all()
