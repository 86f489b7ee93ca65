"""What acting costs: all ways that are measured do the same."""

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


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("model", acting.MODELS)
def test_every_way_gives_the_same_heads(model: str) -> None:
    calls = acting.ways(*acting.MODELS[model], 3, compiled=False)  # raises where they differ
    assert ("numpy" in calls) == (model != "cnn")
    assert set(calls) - {"numpy"} == {"eager", "no_grad", "inference_mode", "jit"}
    first = calls["eager"]()
    assert {name: array.shape for name, array in first.items()} == {
        name: (3, head.n) for name, head in acting.MODELS[model][2].items()
    }


def test_ways_that_differ_are_refused() -> None:
    calls = {"one": lambda: {"q": np.zeros(2)}, "other": lambda: {"q": np.ones(2)}}
    with pytest.raises(AssertionError):
        acting._demand_same(calls)


def test_the_table_leaves_out_what_a_model_does_not_have() -> None:
    shown = acting.table({"mlp": {"numpy": 7.4, "eager": 22.0}, "cnn": {"eager": 500.0}})
    assert shown.splitlines()[2:] == ["| mlp | 7 | 22 |", "| cnn |  | 500 |"]
