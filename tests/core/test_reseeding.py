"""A forked run draws other random numbers than its parent, and the same ones when it is forked again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.reseeding import TORCH_BYTES, Reseeding


def numpy_draws(state: Any) -> list[float]:
    generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    generator.bit_generator.state = state
    return list(generator.random(3))


def python_draws(state: Any) -> list[float]:
    generator = random.Random()
    generator.setstate(state)
    return [generator.random() for _ in range(3)]


def torch_draws(state: Any) -> list[float]:
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(np.array(state)))
    return list(torch.rand(3, generator=generator).numpy())


def numpy_state(kind: str, seed: int) -> Any:
    return np.random.Generator(getattr(np.random, kind)(seed)).bit_generator.state


STATES = [
    *(
        pytest.param(numpy_draws, [numpy_state(kind, seed) for seed in (1, 2)], id=kind)
        for kind in ("PCG64", "MT19937", "Philox", "SFC64")
    ),
    pytest.param(python_draws, [random.Random(seed).getstate() for seed in (1, 2)], id="random"),
    pytest.param(
        torch_draws,
        [torch.Generator().manual_seed(seed).get_state().numpy() for seed in (1, 2)],
        id="torch",
    ),
]


@pytest.mark.parametrize(("draws", "states"), STATES)
def test_generators_follow_from_their_state_and_the_key(draws: Any, states: list[Any]) -> None:
    saved = {"node": {"generators": tuple(states)}}

    def reseeded(key: str) -> list[list[float]]:
        found = Reseeding(key).generators(saved)["node"]["generators"]
        assert isinstance(found, tuple)
        return [draws(state) for state in found]

    first, second = reseeded("a")
    assert reseeded("a") == [first, second]
    every = [*map(draws, states), first, second, *reseeded("b")]
    assert all(a != b for i, a in enumerate(every) for b in every[:i])


def test_what_is_no_generator_stays_as_it_is() -> None:
    arrays = [np.zeros(TORCH_BYTES, np.uint8), np.full(TORCH_BYTES, 7, np.uint8)]
    state = {"arrays": arrays, "triple": (3, (1, 2), None), "text": "bit_generator", "seed": 4}
    found = Reseeding("a").generators(state)
    assert found == state
    assert [a is b for a, b in zip(found["arrays"], arrays, strict=True)] == [True, True]
