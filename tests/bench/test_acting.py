"""`python -m bench acting` compares ways to act that give the same results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from bench import acting


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("model", acting.MODELS)
def test_all_ways_return_the_same_heads(model: str) -> None:
    calls = acting.forward_calls(*acting.MODELS[model], 3, compiled=False)  # raises if they differ
    assert ("numpy" in calls) == (model != "cnn")
    assert set(calls) - {"numpy"} == {"eager", "no_grad", "inference_mode", "jit"}
    first = calls["eager"]()
    assert {name: array.shape for name, array in first.items()} == {
        name: (3, head.n) for name, head in acting.MODELS[model][2].items()
    }


def test_ways_with_different_results_are_refused() -> None:
    calls = {"one": lambda: {"q": np.zeros(2)}, "other": lambda: {"q": np.ones(2)}}
    with pytest.raises(AssertionError):
        acting.check_results_equal(calls)


def test_the_table_has_an_empty_cell_for_a_way_that_a_model_lacks() -> None:
    table = acting.table({"mlp": {"numpy": 7.4, "eager": 22.0}, "cnn": {"eager": 500.0}})
    assert table.splitlines()[2:] == ["| mlp | 7 | 22 |", "| cnn |  | 500 |"]
