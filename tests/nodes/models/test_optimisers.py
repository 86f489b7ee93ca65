"""Optimisers of one flat vector against those of torch, and their saved states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.nodes.models.optimisers import Adam, Adamw, Optimiser, Rmsprop, Sgd
from tests.nodes.learn_modes import same_bits

CASES: dict[str, tuple[Optimiser, Any]] = {
    "adam": (Adam(), lambda p, lr: torch.optim.Adam(p, lr=lr)),
    "adam, other": (
        Adam(beta1=0.5, beta2=0.9, eps=1e-3),
        lambda p, lr: torch.optim.Adam(p, lr=lr, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adamw": (Adamw(), lambda p, lr: torch.optim.AdamW(p, lr=lr)),
    "adamw, other": (
        Adamw(weight_decay=0.1, eps=1e-4),
        lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1, eps=1e-4),
    ),
    "rmsprop": (Rmsprop(), lambda p, lr: torch.optim.RMSprop(p, lr=lr)),
    "rmsprop, momentum": (
        Rmsprop(decay=0.9, momentum=0.8, eps=1e-3),
        lambda p, lr: torch.optim.RMSprop(p, lr=lr, alpha=0.9, momentum=0.8, eps=1e-3),
    ),
    "sgd": (Sgd(), lambda p, lr: torch.optim.SGD(p, lr=lr)),
    "sgd, momentum": (Sgd(momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)),
}


def start() -> torch.Tensor:
    return torch.randn(20, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CASES)
def test_steps_equal_those_of_torch(name: str) -> None:
    optimiser, reference = CASES[name]
    mine, theirs = start(), torch.nn.Parameter(start())
    flat, other = optimiser.attach(mine), reference([theirs], 0.01)
    for step in range(20):
        grads = torch.sin(theirs.detach() * 3 + step)  # the same for both
        flat.step(grads.clone(), 0.01)
        theirs.grad = grads
        other.step()
    assert (mine - start()).abs().max() > 0.01
    torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_restored_optimiser_continues_with_the_same_bits(name: str) -> None:
    optimiser, _ = CASES[name]
    one, other = start(), start()
    first, second = optimiser.attach(one), optimiser.attach(other)

    def take_steps(flat: Any, params: torch.Tensor, steps: range) -> None:
        for step in steps:
            flat.step(torch.sin(params * 3 + step), 0.01)

    take_steps(first, one, range(5))
    saved = first.state_dict()
    other.copy_(one)
    second.load_state_dict(saved)
    take_steps(first, one, range(5, 10))
    assert not same_bits(saved, first.state_dict()) or name == "sgd"  # a saved state is a copy
    take_steps(second, other, range(5, 10))
    assert torch.equal(one, other)
    assert same_bits(first.state_dict(), second.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_a_state_with_other_names_is_refused(name: str) -> None:
    flat = CASES[name][0].attach(start())
    with pytest.raises(ValueError, match=r"has unknown \['more'\]"):
        flat.load_state_dict({**flat.state_dict(), "more": np.zeros(1)})


@pytest.mark.parametrize(
    ("cls", "params"),
    [(Adam, {"beta1": 1.0}), (Adam, {"eps": 0}), (Adamw, {"weight_decay": -1}), (Sgd, {"nu": 1})],
)
def test_unsuitable_parameters_are_refused_by_name(cls: Any, params: dict[str, float]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(params))):
        cls(**params)
