"""Learning curves: what evaluators measured over env steps, runs of the same graph as one band."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from flowrl.core.errors import RunError, UsageError
from flowrl.runs.folder import read_lines

MEASURE = "return_mean"


@dataclass(frozen=True, slots=True)
class Curve:
    """What one evaluator of a run measured: the graph's name, and env steps with the mean return."""

    graph: str  # and the evaluator's name, where a graph has several
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Band:
    """Several runs of a graph: at each of some env steps the median, the least and the most."""

    graph: str
    runs: int
    steps: tuple[float, ...]
    middle: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]


def plot(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Draw the learning curves of run folders as a PNG; gives its path."""
    if not runs:
        raise UsageError("plot: no run is given; name run folders, such as runs/cartpole_dqn-…")
    bands = bands_of([curve for run in runs for curve in curves_of(Path(run))])
    path = Path(out)
    try:
        _draw(bands, path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def curves_of(run: Path) -> list[Curve]:
    """The evaluations in a run's folder, a curve an evaluator; the run may still be going on."""
    if not run.is_dir():
        raise UsageError(f"{run}: there is no such folder; list the runs with 'ls runs'")
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise UsageError(
            f"{run}: has no metrics.jsonl; give the folder of a run that has begun to report"
        )
    points: dict[str, list[tuple[float, float]]] = {}
    for row in read_lines(path):
        if row.get("role") == "evaluator" and _is_number(row.get(MEASURE)):
            points.setdefault(row["node"], []).append((row["env_steps"], row[MEASURE]))
    if not points:
        raise RunError(
            f"{run}: holds no evaluation yet; wait for the first, or add an evaluator to the graph"
        )
    graph, several = _graph_of(run), len(points) > 1
    return [
        Curve(f"{graph}: {node}" if several else graph, tuple(sorted(points[node])))
        for node in sorted(points)
    ]


def _is_number(value: object) -> bool:
    """NaN and infinity are written as words, and have no place in a picture."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _graph_of(run: Path) -> str:
    """The graph's name, from the summary or, before there is one, from the resolved graph."""
    try:
        return str(json.loads((run / "summary.json").read_text(encoding="utf-8"))["graph"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        first = (run / "graph.yaml").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return run.name
    name = first.removeprefix("# ").partition(",")[0].strip()
    return name if first.startswith("# ") and name else run.name


def bands_of(curves: Iterable[Curve]) -> list[Band]:
    """The curves of each graph together, in the order in which the graphs come."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.graph, []).append(curve)
    return [_band(graph, group) for graph, group in groups.items()]


def _band(graph: str, curves: list[Curve]) -> Band:
    """Median, least and most, at every step where some run was judged and each has begun to be.

    A run that ended early (it was solved) keeps its last value: it would not have got worse by
    stopping, and the others go on alone otherwise.
    """
    begin = max(curve.points[0][0] for curve in curves)
    steps = sorted({step for curve in curves for step, _ in curve.points if step >= begin})
    columns = [[_at(curve, step) for curve in curves] for step in steps]
    return Band(
        graph,
        len(curves),
        tuple(steps),
        tuple(median(column) for column in columns),
        tuple(min(column) for column in columns),
        tuple(max(column) for column in columns),
    )


def _at(curve: Curve, step: float) -> float:
    """The curve between two evaluations on a straight line; after the last one, its value."""
    after = bisect_right(curve.points, (step, float("inf")))
    x0, y0 = curve.points[after - 1]
    if x0 == step or after == len(curve.points):
        return y0
    x1, y1 = curve.points[after]
    return y0 + (y1 - y0) * (step - x0) / (x1 - x0)


def _draw(bands: Sequence[Band], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, band in enumerate(bands):
        colour = f"C{number % 10}"
        label = band.graph if band.runs == 1 else f"{band.graph} ({band.runs} runs)"
        marker = "o" if len(band.steps) < 40 else ""
        axes.plot(band.steps, band.middle, color=colour, label=label, marker=marker, ms=3, lw=1.6)
        if band.runs > 1:
            axes.fill_between(band.steps, band.least, band.most, color=colour, alpha=0.18, lw=0)
    _dress(axes, many=any(band.runs > 1 for band in bands))
    figure.savefig(path, format="png")


def _dress(axes: Any, many: bool) -> None:
    """Titles, a quiet grid, steps as 10k."""
    axes.set_xlabel("env steps")
    axes.set_ylabel("mean return of an evaluation" + (" (median, least to most)" if many else ""))
    axes.xaxis.set_major_formatter(lambda value, _: _thousands(value))
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="best")


def _thousands(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
