"""The words and patterns of the graph format."""

from __future__ import annotations

import re

ROOT_KEYS = (
    "about",
    "seed",
    "torch_threads",
    "modules",
    "limits",
    "snapshots",
    "params",
    "nodes",
    "edges",
    "warmup",
    "placements",
    "launch",
)
PART_KEYS = ("about", "params", "ports", "nodes", "edges")  # of a part-graph
# The keys of every node, beside its parameters.
NODE_KEYS = ("type", "replicas", "on_failure", "torch_threads")
PHASE_KEYS = ("edges", "steps", "rounds", "set")
FAILURES = ("stop", "restart", "ignore")
TORCH_THREADS = (1, 1024)  # the least and the most

NODE_NAME = re.compile(r"[A-Za-z_]\w*(-\w+)*(/[A-Za-z_]\w*(-\w+)*)*")
PORT_NAME = re.compile(r"[A-Za-z_]\w*")
PLACE = r"[\w.*?@:/\[\]-]+"  # a site of a placement
PLACE_KEYS = ("place", "cores", "memory", "gpus", "spread")
ANY_HOST = "any"  # the place of a node that only says what it needs
REPLICA_RANGE = re.compile(r"(?P<least>[1-9][0-9]*)\.\.(?P<most>[1-9][0-9]*)", re.ASCII)  # 2..16
PLACED = re.compile(r"(?P<node>[^\[\]]+)(\[(?P<first>\d+)(-(?P<last>\d+))?\])?")  # collector[0-63]

EDGE_END = r"[A-Za-z_][\w/-]*?(?:\.[A-Za-z_]\w*)?"  # node, or node.port
_EDGE_ENDS = rf"\s*{EDGE_END}\s*(?:,\s*{EDGE_END}\s*)*"
EDGE_CHAIN = rf"{_EDGE_ENDS}(?:(?:<->|->){_EDGE_ENDS})+"  # a -> b, c <-> d


def is_file(type_name: str) -> bool:
    """Whether a node's type is the file of a part-graph."""
    return type_name.endswith((".yaml", ".yml"))
