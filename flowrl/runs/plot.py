"""Draws learning curves: mean returns of evaluations over env steps. Runs of the same graph form one band."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from flowrl.core.errors import RunError, UsageError
from flowrl.core.json_text import parse_object
from flowrl.runs.folder import SUMMARY_FILE, read_jsonl

MEASURE = "return_mean"
MAX_DRAWN = 1e300  # the absolute value; larger ones cannot be put on an axis


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """The evaluations of one evaluator in one run."""

    label: str  # the graph's name, with the evaluator's if the graph has several
    points: tuple[tuple[float, float], ...]  # env steps, mean return


@dataclass(frozen=True, slots=True)
class CurveBand:
    """The curves of several runs with the same label: their median and range at each env step."""

    label: str
    runs: int
    steps: tuple[float, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def plot_runs(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Draw the learning curves of run folders as a PNG, and return its path."""
    if not runs:
        raise UsageError("plot: no run is given; name run folders, such as runs/cartpole_dqn-…")
    bands = curve_bands([curve for run in runs for curve in learning_curves(Path(run))])
    path = Path(out)
    try:
        _draw(bands, path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


def learning_curves(run: Path) -> list[LearningCurve]:
    """The curves in a run's folder, one for each evaluator. The run need not have ended."""
    if not run.is_dir():
        raise UsageError(f"{run}: there is no such folder; 'ls runs' lists the runs")
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise UsageError(
            f"{run}: has no metrics.jsonl; give the folder of a run that has begun to report"
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
    graph, several = _graph_name(run), len(points) > 1
    return [
        LearningCurve(f"{graph}: {node}" if several else graph, tuple(sorted(points[node])))
        for node in sorted(points)
    ]


def _is_number(value: object) -> TypeGuard[float]:
    """Whether a value can be drawn. NaN and infinity are stored as strings."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) < MAX_DRAWN


def _graph_name(run: Path) -> str:
    """The graph's name, from the summary or, before there is one, from the resolved graph."""
    try:
        return str(parse_object((run / SUMMARY_FILE).read_text(encoding="utf-8"))["graph"])
    except (OSError, ValueError, KeyError):
        pass
    try:
        first = (
            (run / "graph.yaml").read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        )
    except OSError:
        return run.name
    name = first.removeprefix("# ").partition(",")[0].strip()
    return name if first.startswith("# ") and name else run.name


def curve_bands(curves: Iterable[LearningCurve]) -> list[CurveBand]:
    """One band for all curves of a label, in the order of the first curves."""
    groups: dict[str, list[LearningCurve]] = {}
    for curve in curves:
        groups.setdefault(curve.label, []).append(curve)
    return [_band(label, group) for label, group in groups.items()]


def _band(label: str, curves: list[LearningCurve]) -> CurveBand:
    """Median and range at every step of an evaluation, from where all curves have begun.

    The curve of a run that ended early, because it was solved, continues with its last value.
    Otherwise the median would jump to that of the runs that are not solved yet.
    """
    begin = max(curve.points[0][0] for curve in curves)
    steps = sorted({step for curve in curves for step, _ in curve.points if step >= begin})
    columns = [[_value_at(curve, step) for curve in curves] for step in steps]
    return CurveBand(
        label,
        len(curves),
        tuple(steps),
        tuple(statistics.median(column) for column in columns),
        tuple(min(column) for column in columns),
        tuple(max(column) for column in columns),
    )


def _value_at(curve: LearningCurve, step: float) -> float:
    """The value of a curve at a step: interpolated linearly, and constant after the last evaluation."""
    after = bisect_right(curve.points, (step, float("inf")))
    x0, y0 = curve.points[after - 1]
    if x0 == step or after == len(curve.points):
        return y0
    x1, y1 = curve.points[after]
    return y0 + (y1 - y0) * (step - x0) / (x1 - x0)


def _draw(bands: Sequence[CurveBand], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, band in enumerate(bands):
        colour = f"C{number % 10}"
        label = band.label if band.runs == 1 else f"{band.label} ({band.runs} runs)"
        marker = "o" if len(band.steps) < 40 else ""
        axes.plot(band.steps, band.median, color=colour, label=label, marker=marker, ms=3, lw=1.6)
        if band.runs > 1:
            axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.18, lw=0)
    _style_axes(axes, many=any(band.runs > 1 for band in bands))
    figure.savefig(path, format="png")


def _style_axes(axes: Any, many: bool) -> None:
    axes.set_xlabel("env steps")
    axes.set_ylabel(
        "mean return of an evaluation" + (" (median, minimum to maximum)" if many else "")
    )
    axes.xaxis.set_major_formatter(lambda value, _: _with_unit(value))
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="best")


def _with_unit(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
