"""The graph with which a run continues: as it was at the snapshot, or changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph, check_placed
from flowrl.core.errors import RunError, UsageError
from flowrl.graph.diff import NOTHING, compute_alike, diff_graphs
from flowrl.graph.loading import load_graph, load_text
from flowrl.graph.model import Graph, Limits
from flowrl.graph.param_reader import section_users
from flowrl.runs.snapshot_files import StoredSnapshot

GRAPH_FILE = "graph.yaml"
LIMIT_KEYS = {"time": "time_s"}  # where `limits` in a graph has another name than `Limits`


@dataclass(frozen=True, slots=True)
class ContinuedGraph:
    """The graph of a run's folder with the changed settings, beside the graph of its snapshot."""

    checked: CheckedGraph
    limits: Limits  # those of the run, except where settings change them
    difference: str  # what was changed, in words; empty without changes
    computes_alike: bool  # whether the changes leave the bits of the run as they are
    changes_seed: bool


def read_continued_graph(
    folder: Path,
    stored: StoredSnapshot,
    settings: Mapping[str, str],
    placement: str,
    has_hosts: bool,
) -> ContinuedGraph:
    """Read the graph of a run's folder, which may have been edited, with settings as `--set` takes them.

    It is checked for the placement with which the run continues.

    The limits of the file are not read, because a run that was interrupted writes those with which it is repeated.
    """
    path, name = folder / GRAPH_FILE, str(stored.facts["graph"])
    if "resolved" not in stored.facts:
        raise RunError(f"{folder}: its snapshot does not hold the graph; it is of an older version")
    if not path.is_file():
        raise UsageError(
            f"{folder}: its {GRAPH_FILE} is missing, which a run continues with; put it back"
        )
    resolved = str(stored.facts["resolved"])
    if settings:
        settings = _settings_of_nodes(load_graph(path).graph, settings)
    checked = check_placed(load_graph(path, settings), placement, has_hosts).require_sound()
    known = Limits(**stored.facts["limits"])
    limits = replace(known, **_changed_limits(checked.graph.limits, settings))
    graph = replace(checked.graph, name=name)
    checked = replace(checked, graph=graph)
    if not settings and path.read_text(encoding="utf-8") == resolved:
        return ContinuedGraph(checked, limits, "", True, False)
    before = replace(load_text(resolved, name).graph, limits=known)
    after = replace(graph, limits=limits)
    difference = diff_graphs(before, after)
    return ContinuedGraph(
        checked,
        limits,
        "" if difference == NOTHING else difference,
        compute_alike(before, after),
        before.seed != after.seed,
    )


def _settings_of_nodes(graph: Graph, settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings of a section, such as `policy.lr`, as those of each node that has it.

    A resolved graph has no sections; its nodes have their values.
    """
    found: dict[str, str] = {}
    for key, value in settings.items():
        section, dot, rest = key.partition(".")
        users = [
            f"{spec.name}.{param}{dot}{rest}"
            for spec in graph.nodes.values()
            for param, taken in section_users(spec.config).items()
            if taken == section
        ]
        is_section = users and section not in graph.nodes
        found |= dict.fromkeys(users, value) if is_section else {key: value}
    return found


def _changed_limits(limits: Limits, settings: Mapping[str, str]) -> dict[str, Any]:
    names = [key.removeprefix("limits.") for key in settings if key.startswith("limits.")]
    return {
        LIMIT_KEYS.get(name, name): getattr(limits, LIMIT_KEYS.get(name, name)) for name in names
    }
