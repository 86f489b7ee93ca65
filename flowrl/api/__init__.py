"""The Python interface: load a graph, check it, draw it, run it; continue, fork, record and replay runs."""

from __future__ import annotations

from flowrl.api.flow_graph import FlowGraph, load
from flowrl.api.runs import fork, policy, resume, snapshot
from flowrl.api.tapes import record, replay

__all__ = ["FlowGraph", "fork", "load", "policy", "record", "replay", "resume", "snapshot"]
