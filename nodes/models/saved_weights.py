"""Checks of weights and saved states before they are loaded: their names, shapes and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.saved_state import check_names
from flowrl.nodes.lazy import tensor, torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

Shape = tuple[int, ...]


def check_shapes(owner: str, arrays: Mapping[str, Array], expected: Mapping[str, Shape]) -> None:
    """Raise unless weights have exactly the expected names and shapes.

    Without this check, weights of a wider or deeper network might load, and act arbitrarily.
    """
    check_names(owner, arrays, expected)
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(
                f"{owner}: '{name}' has the shape {arrays[name].shape}, and this model's has {shape}; "
                "is it that of another model?"
            )


def check_no_nan(weights: Mapping[str, Array]) -> None:
    """Raise if learning has diverged: NaN weights never recover, although the policy still acts."""
    diverged = [name for name, a in weights.items() if a.dtype.kind == "f" and np.isnan(a).any()]
    if diverged:
        raise ValueError(
            f"learning has diverged: {len(diverged)} of {len(weights)} weights hold nan (the first: "
            f"'{diverged[0]}'); take a lower `lr`, or check for rewards or observations that are too large"
        )


def saved_tensors(module: Module) -> dict[str, Tensor]:
    """The parameters of a module, and the buffers that belong to its state, by name."""
    persistent = module.state_dict(keep_vars=True)
    return {name: value for name, value in persistent.items() if isinstance(value, torch.Tensor)}


def load_parameters(module: Module, arrays: Mapping[str, Array]) -> None:
    """Copy arrays into a module's parameters and buffers of the same names."""
    targets = saved_tensors(module)
    check_shapes(type(module).__name__, arrays, {n: tuple(t.shape) for n, t in targets.items()})
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensor(arrays[name]))
