"""torch, loaded at its first use: describing and checking a graph must not wait for it."""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType
from typing import Any

import numpy as np

from flowrl.core.batch import ALIGNMENT_BYTES, Array


class LazyModule:
    """Stands for a module; what was asked for once costs no more than an ordinary attribute."""

    def __init__(self, module: str) -> None:
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(_load(self._module), name)
        self.__dict__[name] = value
        return value


@functools.cache
def _load(name: str) -> ModuleType:
    """The module. torch warns once a process of read-only arrays, as tokens are: here, unheard."""
    module = importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("torch").from_numpy(np.frombuffer(bytes(1), np.uint8))
    return module


torch = LazyModule("torch")
functional = LazyModule("torch.nn.functional")


def tensor(array: Array) -> Any:
    """A tensor on the array's own memory, which nobody may write to; or on a copy, where that begins unevenly.

    Products of matrices take other instructions then, and give other bits: but a view that came from another site
    begins evenly.
    """
    made = torch.from_numpy(array)
    if made.is_floating_point() and (made.data_ptr() % ALIGNMENT_BYTES or not made.is_contiguous()):
        return made.clone(memory_format=torch.contiguous_format)
    return made
