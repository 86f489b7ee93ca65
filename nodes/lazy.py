"""torch, imported at its first use, so that describing and checking a graph need not wait for it."""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType
from typing import Any

import numpy as np

from flowrl.core.batch import ALIGNMENT_BYTES, Array


class LazyModule:
    """Stands in for a module, which is imported at the first access. Attributes are cached."""

    def __init__(self, module: str) -> None:
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(_load(self._module), name)
        self.__dict__[name] = value
        return value


@functools.cache
def _load(name: str) -> ModuleType:
    """Import the module; suppress torch's warning about read-only arrays, which all tokens are."""
    module = importlib.import_module(name)
    with warnings.catch_warnings():  # torch warns once in each process: provoke the warning now
        warnings.simplefilter("ignore")
        importlib.import_module("torch").from_numpy(np.frombuffer(bytes(1), np.uint8))
    return module


torch = LazyModule("torch")
functional = LazyModule("torch.nn.functional")


def tensor(array: Array) -> Any:
    """Return a tensor that shares the array's memory and must not be written to.

    A floating-point array that is not aligned and contiguous is copied, because matrix products give
    other bits for it. Arrays that arrived from another site are always aligned.
    """
    made = torch.from_numpy(array)
    if made.is_floating_point() and (made.data_ptr() % ALIGNMENT_BYTES or not made.is_contiguous()):
        return made.clone(memory_format=torch.contiguous_format)
    return made
