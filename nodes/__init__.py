"""The node library: environments, policies, models, collectors, buffers, reward models, learners, evaluators.

All that the catalogue names, and what one's own policies and wrappers are subclasses of, can be had
from here by its class's name; it is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any

SUBCLASSED = ("flowrl.nodes.policy:Policy", "flowrl.nodes.envs.wrappers.wrapper:Wrapper")


def __getattr__(name: str) -> Any:
    path = _paths().get(name)
    if path is None:
        raise AttributeError(f"module 'flowrl.nodes' has no '{name}'; `flowrl nodes` lists all")
    return getattr(importlib.import_module(path.partition(":")[0]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_paths()})


def _paths() -> dict[str, str]:
    from flowrl.nodes.catalogue import CATALOGUE

    named = [path for of in CATALOGUE.values() for path in of.values()]
    return {path.partition(":")[2]: path for path in (*named, *SUBCLASSED)}
