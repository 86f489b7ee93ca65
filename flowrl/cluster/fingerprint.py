"""What a site has read, as short prints by part: to compare with what the run has read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.graph.expand import expand
from flowrl.graph.file_params import file_params
from flowrl.graph.model import Graph
from flowrl.graph.yaml_reader import parse_yaml

Reading = dict[str, str]
HERE_ONLY = ("modules", "placements")  # where something lies, which may differ


def reading(checked: CheckedGraph) -> Reading:
    """A print of each node, of the other sections, and of the schedule."""
    data = graph_data(checked.graph)
    for *outer, last in file_params(checked.graph):
        value_at(data, outer)[last] = "a file"
    nodes = {f"node '{name}'": node for name, node in data.pop("nodes").items()}
    parts = {**nodes, "edges": data.pop("edges"), "settings": data}
    return {name: _print(part) for name, part in {**parts, **_schedule(checked.program)}.items()}


def differing(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """The parts that were read differently: nodes, before what follows from them."""
    names = dict.fromkeys([*there, *here])
    return [name for name in names if here.get(name) != there.get(name)]


def graph_data(graph: Graph) -> dict[str, Any]:
    """The resolved graph as plain data, without what may differ between machines."""
    data: dict[str, Any] = parse_yaml(expand(graph), graph.name).plain()
    return {key: value for key, value in data.items() if key not in HERE_ONLY}


def value_at(data: Any, keys: Any) -> Any:
    """What lies at the end of some keys."""
    for key in keys:
        data = data[key]
    return data


def _schedule(program: SerialProgram) -> dict[str, Any]:
    warmup = [[w.rounds, _part(w.schedule)] for w in program.warmup]
    paced = [[str(p.source), p.every, _part(p.schedule)] for p in program.paced]
    capacity = {str(ref): tokens for ref, tokens in program.capacity.items()}
    initial = {str(ref): tokens for ref, tokens in program.initial.items()}
    return {"schedule": [_part(program.round), warmup, paced, capacity, initial]}


def _part(part: Schedule) -> list[Any]:
    rates = {str(ref): rate for ref, rate in part.rates.items()}
    return [part.order, part.firings, list(map(str, part.edges)), rates]


def _print(part: Any) -> str:
    text = json.dumps(part, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
