"""torch, loaded at its first use: describing and checking a graph must not wait for it."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module; an attribute that was asked for once costs no more than an ordinary one."""

    def __init__(self, module: str) -> None:
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self._module), name)
        self.__dict__[name] = value
        return value


torch = Lazy("torch")
functional = Lazy("torch.nn.functional")
