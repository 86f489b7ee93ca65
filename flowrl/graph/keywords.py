"""The words of the graph format."""

from __future__ import annotations

import re

ROOT_KEYS = (
    "about",
    "seed",
    "torch_threads",
    "modules",
    "limits",
    "params",
    "nodes",
    "edges",
    "warmup",
    "placements",
)
PART_KEYS = ("about", "params", "ports", "nodes", "edges")  # of a part-graph
NODE_KEYS = ("type", "replicas", "on_failure")  # of every node, beside its parameters
PHASE_KEYS = ("edges", "steps", "rounds", "set")
FAILURES = ("stop", "restart", "ignore")

NODE_NAME = re.compile(r"[A-Za-z_]\w*(-\w+)*(/[A-Za-z_]\w*(-\w+)*)*")
PORT_NAME = re.compile(r"[A-Za-z_]\w*")


def is_file(type_name: str) -> bool:
    """Whether a node's type is a part-graph."""
    return type_name.endswith((".yaml", ".yml"))
