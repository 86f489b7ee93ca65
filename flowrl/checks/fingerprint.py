"""Fingerprints of a checked graph, part by part, by which two machines compare the graphs that they have read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.graph.expand import expand
from flowrl.graph.model import Graph
from flowrl.graph.needed_files import file_params
from flowrl.graph.yaml_text import parse_yaml

Fingerprint = dict[str, str]
LOCAL_KEYS = ("modules", "placements", "launch")  # sections that may differ between machines


def graph_fingerprint(checked: CheckedGraph) -> Fingerprint:
    """Return a hash of each node, of the edges, of the other sections, and of the schedule."""
    data = graph_data(checked.graph)
    for *outer, last in file_params(checked.graph):
        value_at(data, outer)[last] = "a file"
    written = data.pop("nodes") or {}  # none if no type is found on a host
    nodes = {f"node '{name}'": node for name, node in written.items()}
    parts = {**nodes, "edges": data.pop("edges"), "settings": data}
    return {name: _hash(part) for name, part in {**parts, **_program_data(checked.program)}.items()}


def differing_parts(received: Mapping[str, str], sent: Mapping[str, str]) -> list[str]:
    """Return the names of the parts that differ: nodes first, then parts that depend on nodes."""
    names = dict.fromkeys([*sent, *received])
    return [name for name in names if received.get(name) != sent.get(name)]


def graph_data(graph: Graph) -> dict[str, Any]:
    """Return the resolved graph as plain data, without the sections that may differ between machines."""
    data: dict[str, Any] = parse_yaml(expand(graph), graph.name).plain()
    return {key: value for key, value in data.items() if key not in LOCAL_KEYS}


def value_at(data: Any, keys: Any) -> Any:
    """Return the value at a path of keys."""
    for key in keys:
        data = data[key]
    return data


def _program_data(program: SerialProgram) -> dict[str, Any]:
    warmup = [[w.rounds, _schedule_data(w.schedule)] for w in program.warmup]
    paced = [[str(p.source), p.every, _schedule_data(p.schedule)] for p in program.paced]
    capacity = {str(ref): tokens for ref, tokens in program.capacity.items()}
    initial = {str(ref): tokens for ref, tokens in program.initial.items()}
    return {"schedule": [_schedule_data(program.round), warmup, paced, capacity, initial]}


def _schedule_data(schedule: Schedule) -> list[Any]:
    rates = {str(ref): rate for ref, rate in schedule.rates.items()}
    return [schedule.order, schedule.firings, list(map(str, schedule.edges)), rates]


def _hash(part: Any) -> str:
    text = json.dumps(part, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
