"""The node library: environments, policies, models, collectors, buffers, reward models, learners, evaluators.

Every class in the catalogue, and the base classes of policies and wrappers, can be imported from this
package by its name. Its module is imported at the first access.
"""

from __future__ import annotations

import importlib
from typing import Any

BASE_CLASSES = ("flowrl.nodes.policy:Policy", "flowrl.nodes.envs.wrappers.wrapper:Wrapper")


def __getattr__(name: str) -> Any:
    path = _paths().get(name)
    if path is None:
        raise AttributeError(f"module 'flowrl.nodes' has no '{name}'; `flowrl nodes` lists all")
    return getattr(importlib.import_module(path.partition(":")[0]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_paths()})


def _paths() -> dict[str, str]:
    from flowrl.nodes.catalogue import CATALOGUE

    listed = [path for types in CATALOGUE.values() for path in types.values()]
    return {path.partition(":")[2]: path for path in (*listed, *BASE_CLASSES)}
