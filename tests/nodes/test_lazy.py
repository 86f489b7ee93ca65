"""Results of tensors made from arrays do not depend on where the arrays lie in memory."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from flowrl.core.batch import Array
from flowrl.nodes.lazy import tensor

SHAPES = list(product((1, 2, 8, 64, 127), (3, 4, 5, 8, 12, 64), (1, 2, 4, 6, 64)))


def with_offset(array: Array, offset: int) -> Array:
    """A copy of the array that begins `offset` bytes after a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    view = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@pytest.mark.parametrize("offset", [4, 8, 16, 20, 40])
def test_products_do_not_depend_on_the_alignment_of_an_array(offset: int) -> None:
    rng = np.random.default_rng(offset)
    for rows, width, outs in SHAPES:
        weights = torch.from_numpy(rng.standard_normal((outs, width)).astype(np.float32)).clone()
        array = rng.standard_normal((rows, width)).astype(np.float32)
        wide = rng.standard_normal((rows, width + 9)).astype(np.float32)
        part = wide[:, 3 : 3 + width]
        for even, other in ((array, with_offset(array, offset)), (part.copy(), part)):
            first, second = (tensor(a) @ weights.T for a in (even, other))
            assert torch.equal(first, second), (rows, width, outs)


def test_an_aligned_array_is_not_copied() -> None:
    even = with_offset(np.ones((5, 4), np.float32), 0)
    assert tensor(even).data_ptr() == even.ctypes.data
    numbers = with_offset(np.arange(9), 8)  # matrix products are of real numbers only
    assert tensor(numbers).data_ptr() == numbers.ctypes.data
