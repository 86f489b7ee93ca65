"""Reads the sections of a graph that are neither nodes, edges nor warm-up: seed, limits, placements and so on."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.core.errors import Problems, shortened_repr, spelling_hint
from flowrl.graph.keywords import TORCH_THREADS
from flowrl.graph.launch import read_launch
from flowrl.graph.model import (
    SNAPSHOT_KEYS,
    Graph,
    Limits,
    PortRef,
    SnapshotSettings,
)
from flowrl.graph.param_reader import ParamReader
from flowrl.graph.placement import placed_key_problem, split_placed_key
from flowrl.graph.places import place_problems
from flowrl.graph.yaml_text import YamlValue

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, None: 1}
_COUNTS = ("steps", "train_iters", "rounds")  # limits beside `time`


def read_sections(
    fields: Mapping[str, YamlValue],
    graph: Graph,
    parts: Mapping[str, Mapping[str, PortRef]],
    broken: set[str],
    params: ParamReader,
) -> None:
    """Fill in everything of the graph but nodes, edges and warm-up."""
    problems = params.problems
    graph.about = _read_about(fields.get("about"), problems)
    graph.seed = _number_or(0, fields.get("seed"), "seed", (0, 2**63 - 1), problems)
    graph.torch_threads = _number_or(
        1, fields.get("torch_threads"), "torch_threads", TORCH_THREADS, problems
    )
    graph.limits = _read_limits(fields.get("limits"), problems)
    graph.snapshots = _read_snapshots(fields.get("snapshots"), problems)
    names = {**{n: (n,) for n in (*graph.nodes, *broken)}, **part_members(graph, parts)}
    graph.placements = _read_placements(fields.get("placements"), names, problems)
    graph.launch = read_launch(fields.get("launch"), params)


def part_members(
    graph: Graph, parts: Mapping[str, Mapping[str, PortRef]]
) -> dict[str, tuple[str, ...]]:
    """The nodes of each part-graph."""
    found: dict[str, list[str]] = {part: [] for part in parts}
    for name in graph.nodes:
        part = name.rpartition("/")[0]
        while part:
            if part in found:
                found[part].append(name)
            part = part.rpartition("/")[0]
    return {part: tuple(names) for part, names in found.items()}


def read_modules(item: YamlValue | None, problems: Problems) -> tuple[Path, ...]:
    """The folders of Python modules. A path is relative to the file that names it."""
    if item is None or item.value is None:
        return ()
    found = []
    for entry in item.items if isinstance(item.value, list) else [item]:
        beside = Path(entry.location.file).parent if entry.location.line else Path()
        if isinstance(entry.value, str) and os.path.isdir(beside / entry.value):
            found.append(beside / entry.value)
        else:
            what = f"modules: there is no folder {shortened_repr(entry.plain())}"
            problems.add(entry.location, what, "its path is from this file")
    return tuple(found)


def parse_seconds(value: Any) -> float | None:
    """The seconds of a time such as 90, 30s, 10m or 2h; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 < value < float("inf") else None
    found = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    amount = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    return amount if 0 < amount < float("inf") else None


def _read_about(item: YamlValue | None, problems: Problems) -> str:
    if item is None or item.value is None:
        return ""
    if not isinstance(item.value, str):
        problems.add(item.location, f"about is {shortened_repr(item.plain())}", "expected a text")
    return str(item.plain()).strip()


def read_number(
    item: YamlValue, path: str, between: tuple[int, int], problems: Problems
) -> int | None:
    """Return a whole number within these bounds; None, with a problem, if it is none."""
    value, (least, most) = item.value, between
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    hint = f"expected a whole number from {least} to {most}"
    problems.add(item.location, f"{path} is {shortened_repr(item.plain())}", hint)
    return None


def _number_or(
    default: int, item: YamlValue | None, path: str, between: tuple[int, int], problems: Problems
) -> int:
    """Return a whole number, or the default where none is written."""
    found = (
        None if item is None or item.value is None else read_number(item, path, between, problems)
    )
    return default if found is None else found


def _read_limits(item: YamlValue | None, problems: Problems) -> Limits:
    if item is None or item.value is None:
        return Limits()
    if not isinstance(item.value, dict):
        hint = "limits: {steps: 100000, train_iters: 5000, time: 10m}"
        problems.add(item.location, "limits: expected a mapping", hint)
        return Limits()
    found: dict[str, Any] = {}
    for name, entry in item.value.items():
        if entry.value is None and name in (*_COUNTS, "time"):
            continue  # no limit, as if it were not written
        if name in _COUNTS:
            found[name] = _number_or(1, entry, f"limits.{name}", (1, 2**62), problems)
        elif name == "time":
            found["time_s"] = parse_seconds(entry.value)
            if found["time_s"] is None:
                hint = "expected a time such as 30s, 10m or 2h"
                problems.add(
                    entry.location, f"limits.time is {shortened_repr(entry.plain())}", hint
                )
        else:
            hint = spelling_hint(name, (*_COUNTS, "time"))
            problems.add(entry.entry_location, f"limits: unknown key '{name}'", hint)
    return Limits(**found)


def _read_snapshots(item: YamlValue | None, problems: Problems) -> SnapshotSettings:
    if item is None or item.value is None:
        return SnapshotSettings()
    if item.value is False:
        return SnapshotSettings(is_off=True)
    hint = "snapshots: {every_s: 60, keep: 2}"
    if not isinstance(item.value, dict):
        problems.add(item.location, "snapshots: expected a mapping, or false", hint)
        return SnapshotSettings()
    found: dict[str, Any] = {}
    for name, entry in item.value.items():
        if name not in SNAPSHOT_KEYS:
            spelling = spelling_hint(name, SNAPSHOT_KEYS)
            problems.add(entry.entry_location, f"snapshots: unknown key '{name}'", spelling)
        elif entry.value is None:
            continue
        elif name == "every_s":
            found[name] = parse_seconds(entry.value)
            if found[name] is None:
                what = f"snapshots.every_s is {shortened_repr(entry.plain())}"
                problems.add(entry.location, what, "expected seconds, or a time such as 10m")
        else:
            found[name] = _number_or(1, entry, f"snapshots.{name}", (1, 2**31), problems)
    settings = SnapshotSettings(**found)
    if not settings.is_regular:
        problems.add(item.location, "snapshots: it is not said how often", hint)
    return settings


def _read_placements(
    item: YamlValue | None, names: Mapping[str, tuple[str, ...]], problems: Problems
) -> dict[str, dict[str, Any]]:
    if item is None or item.value is None:
        return {}
    if not isinstance(item.value, dict):
        hint = "placements: {parallel: {collector: process}}"
        problems.add(item.location, "placements: expected a mapping", hint)
        return {}
    return {name: _read_placement(name, p, names, problems) for name, p in item.value.items()}


def _read_placement(
    name: str, item: YamlValue, names: Mapping[str, tuple[str, ...]], problems: Problems
) -> dict[str, Any]:
    """A placement as it is written, with the nodes of part-graphs. `read_placement` knows of the nodes' replicas."""
    found: dict[str, Any] = {}
    if not isinstance(item.value, dict):
        what = f"placements.{name}: expected a mapping of nodes to places"
        problems.add(item.location, what, "{collector: process}")
    for key, place in item.fields.items():
        if problem := placed_key_problem(key):
            problems.add(place.entry_location, f"placements.{name}: {problem}")
            continue
        node = split_placed_key(key)[0]
        if node not in names:
            what = f"placements.{name}: unknown node '{node}'"
            problems.add(place.entry_location, what, spelling_hint(node, names))
            continue
        written = place.plain()
        wrong = list(place_problems(written))
        for entry, what, hint in wrong:
            at = place.fields[entry].location if entry in place.fields else place.location
            subject = f"placements.{name}.{key}"
            problems.add(at, f"{subject}: {what}" if entry else f"{subject} {what}", hint)
        if not wrong:
            found |= {f"{n}{key.removeprefix(node)}": written for n in names[node]}
    return found
