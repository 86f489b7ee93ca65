"""Placements: which nodes share a site. They say where a graph runs, and change nothing that it computes.

A place is `thread`, `process`, or hosts: a name, a label, a pattern of these, or `any` (`graph.places`). A place alone
makes one site for each linked group that is put there, and for each of its replicas; a place with a name
(`process:left`) makes one site for all nodes that are put there. Nodes and replicas that a placement does not name go
with the nodes that they are linked to, or else to the main site, in the process where the run was started.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.core.errors import UsageError, shortened_repr, spelling_hint
from flowrl.graph.keywords import PLACED
from flowrl.graph.model import Graph
from flowrl.graph.places import (
    BUILT_IN,
    Place,
    place_problems,
    read_place,
)
from flowrl.graph.yaml_text import YamlValue, read_yaml

InstanceId = tuple[str, int]  # a node, and its replica's number
Placement = Mapping[InstanceId, Place]  # of the instances that it names


def resolve_placement(graph: Graph, text: str) -> Placement:
    """The placement that `--placement` names: by its name, a YAML file, or `collector=process,learner=thread`."""
    if not isinstance(text, str):  # from Python
        raise UsageError(
            f"placement is {shortened_repr(text)}; expected a text: `processes`, `collector=process,learner=thread`, "
            "the name of one of the graph's placements, or of a YAML file"
        )
    text = text.strip()
    if text in graph.placements:
        return read_placement(graph, graph.placements[text], f"placements.{text}")
    if text in BUILT_IN:
        return read_placement(graph, dict.fromkeys(graph.nodes, BUILT_IN[text]), text)
    if text.endswith((".yaml", ".yml")):
        return read_placement(graph, _read_placement_file(Path(text)), text)
    if "=" in text:
        return read_placement(graph, _parse_assignments(text), f"--placement {text}")
    hint = spelling_hint(text, {*BUILT_IN, *graph.placements})
    raise UsageError(
        f"--placement {text}: there is no such placement; {hint} "
        "(or give a YAML file, or node=process,…)"
    )


def read_placement(graph: Graph, written: Mapping[str, Any], where: str = "placement") -> Placement:
    """The place of each instance that a written placement names. A part-graph's name stands for all of its nodes.

    An entry for some replicas (`collector[0-63]`) comes before one for the whole node.
    """
    whole: dict[InstanceId, Place] = {}
    by_range: dict[InstanceId, Place] = {}
    keys: dict[InstanceId, str] = {}  # with which a replica was named
    for key, value in written.items():
        name, numbers = _parse_key(key, where)
        members = [n for n in graph.nodes if n == name or n.startswith(f"{name}/")]
        if not members:
            parts = {n.rpartition("/")[0] for n in graph.nodes if "/" in n}
            hint = spelling_hint(name, {*graph.nodes, *parts})
            raise UsageError(f"{where}: unknown node '{name}'; {hint}")
        for problem in place_problems(value):
            raise UsageError(f"{where}: {_place_problem_text(key, value, *problem)}")
        place = read_place(value)
        for node in members:
            replicas = range(graph.nodes[node].replicas)
            if numbers is None:
                whole |= {(node, replica): place for replica in replicas}
                continue
            _require_replicas(node, numbers, replicas, key, where)
            for instance in ((node, replica) for replica in numbers):
                if instance in keys:
                    raise UsageError(
                        f"{where}: '{keys[instance]}' and '{key}' both place replica {instance[1]}; place each once"
                    )
                keys[instance], by_range[instance] = key, place
    return {**whole, **by_range}


def _parse_key(key: str, where: str) -> tuple[str, range | None]:
    """The node that an entry names, and the replicas if these are not all."""
    if problem := placed_key_problem(key):
        raise UsageError(f"{where}: {problem}")
    return split_placed_key(key)


def placed_key_problem(key: str) -> str:
    """What is wrong with the replicas that an entry of a placement names; empty if nothing is."""
    match = PLACED.fullmatch(key)
    if match is None:
        node = key.partition("[")[0]
        return f"'{key}' does not name replicas; write {node}[0-3] or {node}[0]"
    first, last = match["first"], match["last"]
    if last is not None and int(last) < int(first):
        return f"'{key}' names no replica; write {match['node']}[{int(last)}-{int(first)}]"
    return ""


def split_placed_key(key: str) -> tuple[str, range | None]:
    """The node and the replicas of a valid entry: `collector[0-3]` is (`collector`, range(4))."""
    match = PLACED.fullmatch(key)
    assert match is not None
    if match["first"] is None:
        return match["node"], None
    first = int(match["first"])
    return match["node"], range(first, int(match["last"] or first) + 1)


def _require_replicas(node: str, numbers: range, replicas: range, key: str, where: str) -> None:
    if numbers[-1] in replicas:
        return
    count = len(replicas)
    has = f"{count} replicas, 0 to {count - 1}" if count > 1 else "one replica, 0"
    raise UsageError(
        f"{where}: '{key}' names replica {numbers[-1]}, and {node} has {has}; "
        f"name only these, or set {node}.replicas={numbers[-1] + 1}"
    )


def _place_problem_text(key: str, value: Any, entry: str, what: str, hint: str) -> str:
    if not entry:
        return f"'{key}' is put at {shortened_repr(value)}; {hint}"
    return f"'{key}': {what}; {hint}"


def _parse_assignments(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in text.split(","):
        name, equals, place = (part.strip() for part in word.partition("="))
        if not (name and equals and place):
            raise UsageError(
                f"--placement {text}: '{word.strip()}' is not node=place; "
                "write collector=process,learner=thread"
            )
        if place.startswith("{"):
            raise UsageError(
                f"--placement {text}: needs are not written on the command line; write them in the graph "
                f"(`placements`) or in a file: '{name}: {{gpus: 1}}'"
            )
        if found.setdefault(name, place) != place:
            raise UsageError(
                f"--placement {text}: '{name}' is put at {found[name]} and at {place}; name it once"
            )
    return found


def _read_placement_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"--placement {path}: there is no such file; write nodes and places in it")
    tree = read_yaml(path)
    if not isinstance(tree.value, dict):
        raise UsageError(f"{tree.location}: a placement is a mapping; write 'collector: process'")
    for key, item in tree.fields.items():
        _check_file_entry(key, item)
    found: dict[str, Any] = tree.plain()
    return found


def _check_file_entry(key: str, item: YamlValue) -> None:
    if problem := placed_key_problem(key):
        raise UsageError(f"{item.entry_location}: {problem}")
    for entry, what, hint in place_problems(item.plain()):
        at = item.fields[entry].location if entry in item.fields else item.location
        raise UsageError(f"{at}: {_place_problem_text(key, item.plain(), entry, what, hint)}")
