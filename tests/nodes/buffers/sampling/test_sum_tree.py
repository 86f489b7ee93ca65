"""The sum tree: draws in proportion to weights, and equal bits from numpy and from compiled kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.nodes.buffers.sampling import sum_tree
from flowrl.nodes.buffers.sampling.sum_tree import SumTree

pytest.importorskip("numba")
both = pytest.mark.parametrize("compiled", [False, True])


@pytest.mark.slow
@both
def test_a_mass_finds_the_place_in_whose_weight_it_falls(compiled: bool) -> None:
    tree = SumTree(20, compiled)
    tree.set(np.array([1, 4, 19]), np.array([2.0, 1.0, 3.0]))
    masses = np.array([0.0, 1.99, 2.0, 2.99, 3.0, 5.99])
    assert tree.total == 6.0
    assert tree.find(masses).tolist() == [1, 1, 4, 4, 19, 19]


@pytest.mark.slow
@both
def test_a_mass_beyond_the_total_finds_the_last_place_with_a_weight(compiled: bool) -> None:
    tree = SumTree(100, compiled)
    tree.set(np.array([3, 70]), np.array([0.1, 0.2]))
    assert tree.find(np.array([tree.total, 1e9])).tolist() == [70, 70]


@both
@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 65, 600])
def test_places_are_found_in_proportion_to_their_weights(size: int, compiled: bool) -> None:
    tree = SumTree(size, compiled)
    weights = np.arange(size) % 3 + 1.0
    tree.load(weights)
    masses = np.arange(int(weights.sum())) + 0.5
    assert np.bincount(tree.find(masses), minlength=size).tolist() == weights.tolist()


@both
def test_the_last_weight_of_a_place_that_occurs_twice_is_used(compiled: bool) -> None:
    tree = SumTree(16, compiled)
    tree.set(np.array([5, 5]), np.array([1.0, 4.0]))
    assert tree.weights[5] == tree.total == 4.0


@both
def test_fill_sets_consecutive_places_and_load_resets_the_others(compiled: bool) -> None:
    tree = SumTree(200, compiled)
    tree.fill(7, 130, 0.5)
    assert tree.total == 0.5 * 123
    assert tree.find(np.array([0.0, 61.4])).tolist() == [7, 129]
    tree.load(np.array([1.0, 2.0]))
    assert tree.total == 3.0
    assert np.flatnonzero(tree.weights).tolist() == [0, 1]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 1200), st.integers(0, 2**32 - 1))
def test_compiled_kernels_and_numpy_give_the_same_bits(size: int, seed: int) -> None:
    plain, fast = SumTree(size, False), SumTree(size, True)
    rng = np.random.default_rng(seed)
    for _ in range(6):
        places = rng.integers(size, size=17)
        weights = rng.random(17) * (rng.random(17) > 0.3) * 10.0 ** rng.integers(-9, 9, 17)
        start, stop = sorted(rng.integers(size + 1, size=2).tolist())
        weight = float(rng.random())
        for tree in (plain, fast):
            tree.set(places, weights)
            tree.fill(start, stop, weight)
        assert plain._nodes.tobytes() == fast._nodes.tobytes()
        masses = rng.random(50) * plain.total
        found = plain.find(masses)
        assert found.tolist() == fast.find(masses).tolist()
        assert plain.total == 0 or (plain.weights[found] > 0).all()


def test_find_does_not_change_the_masses() -> None:
    for compiled in (False, True):
        tree = SumTree(9, compiled)
        tree.load(np.ones(9))
        masses = np.array([0.5, 8.5])
        tree.find(masses)
        assert masses.tolist() == [0.5, 8.5]


def test_without_numba_large_trees_use_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert SumTree(sum_tree.COMPILED_FROM)._kernels is not None
    assert SumTree(sum_tree.COMPILED_FROM - 1)._kernels is None
    monkeypatch.setattr(sum_tree.importlib.util, "find_spec", lambda name: None)
    sum_tree.load_kernels.cache_clear()
    try:
        assert SumTree(sum_tree.COMPILED_FROM)._kernels is None
    finally:
        sum_tree.load_kernels.cache_clear()


def test_numba_is_not_loaded_for_small_trees() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from flowrl.nodes.buffers.advanced_replay_buffer import *;"
        "AdvancedReplayBuffer(size=1000); sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
