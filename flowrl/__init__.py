"""flowrl: reinforcement learning as a dataflow graph in YAML. Placement is not semantics.

import flowrl

result = flowrl.load("cartpole_dqn").run(seed=1)
print(result.status, result.eval_return, result.digest)
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.version import VERSION as __version__

if TYPE_CHECKING:
    from flowrl.api import FlowGraph, fork, load, policy, record, replay, resume, snapshot
    from flowrl.cluster.rendezvous import Rendezvous
    from flowrl.core.batch import Batch, Column, Schema
    from flowrl.core.config import Config, Part, named_parts, param, part, parts
    from flowrl.core.context import Context
    from flowrl.core.errors import FlowError, GraphError, NodeError, RunError, UsageError
    from flowrl.core.facts import (
        Facts,
        MissingPackageError,
        NetworkFacts,
        Surroundings,
        UnsoundError,
    )
    from flowrl.core.functions import as_node
    from flowrl.core.node import Node
    from flowrl.core.ports import In, Link, Out, Service, StateIn, StateOut
    from flowrl.core.records import MetricsRecord, Record
    from flowrl.core.state import State
    from flowrl.runs.metrics_table import MetricsTable
    from flowrl.runs.result import RunResult
    from flowrl.runs.run import Run
    from flowrl.runs.run_log import RunLog
    from flowrl.runs.seed_results import SeedResults
    from flowrl.runs.seed_statistics import SeedStatistics
    from flowrl.runs.trained_policy import TrainedPolicy
    from flowrl.runs.watcher import Watcher
    from flowrl.runtime.records import RecordSource

# The module of each public name. It is imported when the name is first used, so that `flowrl --help` is fast.
_MODULE_OF = {
    **dict.fromkeys(
        ("FlowGraph", "fork", "load", "policy", "record", "replay", "resume", "snapshot"), "api"
    ),
    **dict.fromkeys(("Batch", "Column", "Schema"), "core.batch"),
    **dict.fromkeys(("Config", "Part", "named_parts", "param", "part", "parts"), "core.config"),
    **dict.fromkeys(("Context", "MetricsRecord", "Record"), "core.context"),
    **dict.fromkeys(
        ("FlowError", "GraphError", "NodeError", "RunError", "UsageError"), "core.errors"
    ),
    "as_node": "core.functions",
    **dict.fromkeys(
        ("Facts", "MissingPackageError", "NetworkFacts", "Surroundings", "UnsoundError"),
        "core.facts",
    ),
    "Node": "core.node",
    **dict.fromkeys(("In", "Link", "Out", "Service", "StateIn", "StateOut"), "core.ports"),
    "MetricsTable": "runs.metrics_table",
    "RecordSource": "runtime.records",
    "Run": "runs.run",
    "RunLog": "runs.run_log",
    "RunResult": "runs.result",
    "SeedResults": "runs.seed_results",
    "SeedStatistics": "runs.seed_statistics",
    "TrainedPolicy": "runs.trained_policy",
    "Watcher": "runs.watcher",
    "Rendezvous": "cluster.rendezvous",
    "State": "core.state",
}

__all__ = [
    "Batch",
    "Column",
    "Config",
    "Context",
    "Facts",
    "FlowError",
    "FlowGraph",
    "GraphError",
    "In",
    "Link",
    "MetricsRecord",
    "MetricsTable",
    "MissingPackageError",
    "NetworkFacts",
    "Node",
    "NodeError",
    "Out",
    "Part",
    "Record",
    "RecordSource",
    "Rendezvous",
    "Run",
    "RunError",
    "RunLog",
    "RunResult",
    "Schema",
    "SeedResults",
    "SeedStatistics",
    "Service",
    "State",
    "StateIn",
    "StateOut",
    "Surroundings",
    "TrainedPolicy",
    "UnsoundError",
    "UsageError",
    "Watcher",
    "__version__",
    "as_node",
    "fork",
    "load",
    "named_parts",
    "param",
    "part",
    "parts",
    "policy",
    "record",
    "replay",
    "resume",
    "snapshot",
]

# In a checkout that is not installed, `nodes` and `graphs` lie beside this package, not in it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "nodes" / "catalogue.py").is_file() and str(_checkout) not in __path__:
    __path__.append(str(_checkout))


def __dir__() -> list[str]:
    return sorted({*__all__, "nodes", *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # to type checkers it would promise every name

    def __getattr__(name: str) -> Any:
        if name == "nodes":
            return importlib.import_module("flowrl.nodes")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'flowrl' has no attribute '{name}'")
        return getattr(importlib.import_module(f"flowrl.{_MODULE_OF[name]}"), name)
