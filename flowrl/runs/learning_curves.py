"""Reads from run folders what learning curves are drawn of: evaluations, the seed, and the settings of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from flowrl.core.errors import FlowError, GraphError, RunError, UsageError
from flowrl.core.json_text import parse_object
from flowrl.graph.yaml_text import read_yaml
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.folder import METRICS_FILE, SUMMARY_FILE, read_jsonl

MEASURE = "return_mean"
MAX_DRAWN = 1e300  # the absolute value; larger ones cannot be put on an axis
# Of a resolved graph: what two runs may differ in that still compute the same.
NO_SETTINGS = ("seed", "about", "limits", "placements", "modules")

Points = tuple[tuple[float, float], ...]  # env steps, mean return


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """A run with the evaluations of each evaluator. It need not have ended."""

    folder: Path
    graph: str
    about: str
    seed: int | None  # None if the folder does not say
    settings: Mapping[str, Any]  # of the resolved graph, by path
    curves: Mapping[str, Points] = field(default_factory=dict)  # by evaluator
    solved: bool = False

    def repeats(self, other: EvaluatedRun) -> bool:
        """Whether this run shows nothing that the other one does not: the same graph and seed, and no other values."""
        return (
            self.seed is not None
            and (self.graph, self.seed, self.settings) == (other.graph, other.seed, other.settings)
            and all(
                points == other.curves.get(node, ())[: len(points)]
                for node, points in self.curves.items()
            )
        )


def read_run(run: Path) -> EvaluatedRun:
    """Read a run's folder. Nothing that its graph names is imported."""
    if not run.is_dir():
        raise UsageError(f"{run}: there is no such folder; 'ls runs' lists the runs")
    curves, summary = _read_curves(run), _read_summary(run)
    graph = _read_graph(run)
    seed = graph.get("seed")
    return EvaluatedRun(
        run,
        str(summary.get("graph") or _name_in_graph(run) or run.name),
        str(graph.get("about") or ""),
        seed if isinstance(seed, int) else None,
        dict(_flattened({k: v for k, v in graph.items() if k not in NO_SETTINGS})),
        curves,
        summary.get("status") == "solved",
    )


def read_runs(folders: Iterable[Path]) -> tuple[list[EvaluatedRun], list[str]]:
    """The runs of folders, and a sentence about each that is left out. A folder of runs stands for all runs in it.

    A run of a folder of runs may have no evaluation, because it failed early or has just begun; one that is named must.
    """
    found: list[EvaluatedRun] = []
    left_out: list[str] = []
    for folder in folders:
        runs = [] if (folder / METRICS_FILE).is_file() else _runs_in(folder)
        for run in runs or [folder]:
            try:
                found.append(read_run(run))
            except FlowError as error:
                if not runs:
                    raise
                left_out.append(f"left out: {error}")
    if left_out and not found:
        raise RunError("\n".join(left_out))
    return found, left_out


def _runs_in(folder: Path) -> list[Path]:
    """The run folders in a folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if (path / "graph.yaml").is_file())


def without_repeats(runs: Iterable[EvaluatedRun]) -> tuple[list[EvaluatedRun], list[str]]:
    """The runs in their order without those that repeat another one, and a sentence about each of these."""
    given = list(runs)
    kept: list[EvaluatedRun] = []
    left_out: list[str] = []
    # The longest one is kept, and of equal ones the first.
    for run in sorted(given, key=lambda run: -sum(map(len, run.curves.values()))):
        other = next((k for k in kept if run.repeats(k)), None)
        if other is None:
            kept.append(run)
        else:
            left_out.append(
                f"{run.folder} is left out: it repeats {other.folder} (the same graph and seed {run.seed})"
            )
    return [run for run in given if any(run is other for other in kept)], left_out


def _read_curves(run: Path) -> dict[str, Points]:
    path = run / METRICS_FILE
    if not path.is_file():
        raise UsageError(
            f"{run}: has no {METRICS_FILE}; give the folder of a run that has begun to report"
        )
    points: dict[str, list[tuple[float, float]]] = {}
    for row in read_jsonl(path):
        if row.get("role") == "evaluator" and _is_number(row.get(MEASURE)):
            node, env_steps = row.get("node"), row.get("env_steps")
            if not (isinstance(node, str) and _is_number(env_steps)):
                raise RunError(
                    f"{path}: an evaluation has the node {node!r:.40} and env_steps {env_steps!r:.40}; expected a "
                    "name and a number; the file is damaged"
                )
            points.setdefault(node, []).append((env_steps, row[MEASURE]))
    if not points:
        raise RunError(
            f"{run}: contains no evaluation yet; wait for the first one, or add an evaluator to the graph"
        )
    return {node: tuple(sorted(points[node])) for node in sorted(points)}


def _is_number(value: object) -> TypeGuard[float]:
    """Whether a value can be drawn. NaN and infinity are stored as strings."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) < MAX_DRAWN


def _read_summary(run: Path) -> Mapping[str, Any]:
    try:
        return parse_object((run / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # the run has not ended


def _name_in_graph(run: Path) -> str:
    """The graph's name in the first line of the resolved graph."""
    try:
        text = (run / "graph.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    first = text.partition("\n")[0]
    return first.removeprefix("# ").partition(",")[0].strip() if first.startswith("# ") else ""


def _read_graph(run: Path) -> Mapping[str, Any]:
    """The resolved graph as plain data; empty without one."""
    path = run / "graph.yaml"
    if not path.is_file():
        return {}
    try:
        graph = read_yaml(path).plain()
    except GraphError as error:
        raise RunError(f"{error.problems[0]}; the file is damaged") from None
    return graph if isinstance(graph, dict) else {}


def _flattened(graph: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a graph by path: `learner.policy.lr`. An edge is named by the input that it ends in."""
    for section, value in graph.items():
        if section == "nodes" and isinstance(value, Mapping):
            yield from _leaves("", value)
        elif section == "edges" and isinstance(value, list):
            for edge in value:
                fields = dict(edge) if isinstance(edge, Mapping) else {}
                yield from _leaves(f"{fields.pop('to', '')}.", fields)
        else:
            yield section, flow_text(value)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        yield path.removesuffix("."), flow_text(value)
        return
    for key, inner in value.items():
        yield from _leaves(f"{path}{key}.", inner)
