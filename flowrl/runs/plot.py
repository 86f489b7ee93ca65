"""Draws learning curves: mean returns of evaluations over env steps. Runs that differ in their seeds form one band."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.core.errors import UsageError
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.figure_file import check_ending, write_figure
from flowrl.runs.learning_curves import EvaluatedRun, Points, read_runs, without_repeats
from flowrl.runs.setting_labels import setting_labels

SHOWN_GRAPHS = 3  # in a title
TITLE_WIDTH = 90  # characters
MARKED_POINTS = 40  # a line with fewer has a marker at each


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """The evaluations of one evaluator in one run."""

    label: str  # the graph, the settings in which it differs from others, and the evaluator if there are several
    points: Points
    solved: bool = False


@dataclass(frozen=True, slots=True)
class CurveBand:
    """The curves with the same label, and their median and range as far as all of them go."""

    label: str
    curves: tuple[LearningCurve, ...]
    steps: tuple[float, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture that was written, and what is not in it."""

    path: Path
    left_out: tuple[str, ...] = ()  # a sentence about each run that is not in it


def plot_runs(runs: Sequence[str | Path], out: str | Path) -> Plot:
    """Draw the learning curves of run folders as a PNG or SVG file. A folder of runs stands for all runs in it."""
    if not runs:
        raise UsageError("plot: no run is given; name run folders, such as runs/cartpole_dqn-…")
    path = Path(out)
    check_ending("plot", path)
    evaluated, without_curves = read_runs(map(Path, runs))
    found, repeats = without_repeats(evaluated)
    left_out = [*without_curves, *repeats]
    _draw(curve_bands(labelled_curves(found)), title_of(found), path)
    return Plot(path, tuple(left_out))


def title_of(runs: Sequence[EvaluatedRun]) -> str:
    """The graph's name and what it is about, or the names of several graphs."""
    graphs = list(dict.fromkeys(run.graph for run in runs))
    if len(graphs) > 1:
        more = ", …" if len(graphs) > SHOWN_GRAPHS else ""
        return f"{', '.join(graphs[:SHOWN_GRAPHS])}{more}"
    title = f"{graphs[0]}: {runs[0].about}" if runs[0].about else graphs[0]
    return title if len(title) <= TITLE_WIDTH else f"{title[: TITLE_WIDTH - 1]}…"


def labelled_curves(runs: Sequence[EvaluatedRun]) -> list[LearningCurve]:
    """The curves of runs. Those of one graph have the same label if only the seed differs."""
    groups: dict[str, dict[str, list[EvaluatedRun]]] = {}
    for run in runs:
        groups.setdefault(run.graph, {}).setdefault(flow_text(run.settings), []).append(run)
    several_nodes = any(len(run.curves) > 1 for run in runs)
    return [
        LearningCurve(f"{label} ({node})" if several_nodes else label, points, run.solved)
        for graph, by_settings in groups.items()
        for label, members in zip(
            _group_labels(graph, list(by_settings.values()), alone=len(groups) == 1),
            by_settings.values(),
            strict=True,
        )
        for run in members
        for node, points in run.curves.items()
    ]


def _group_labels(graph: str, groups: Sequence[Sequence[EvaluatedRun]], alone: bool) -> list[str]:
    """The labels of the groups of one graph; if it is `alone`, the title names it."""
    settings = setting_labels([group[0].settings for group in groups])
    if alone and all(settings):
        return settings
    return [f"{graph}, {label}" if label else graph for label in settings]


def curve_bands(curves: Iterable[LearningCurve]) -> list[CurveBand]:
    """One band for all curves of a label, in the order of the first curves."""
    groups: dict[str, list[LearningCurve]] = {}
    for curve in curves:
        groups.setdefault(curve.label, []).append(curve)
    return [_band(label, group) for label, group in groups.items()]


def _band(label: str, curves: Sequence[LearningCurve]) -> CurveBand:
    """Median and range at each step of an evaluation, from where all curves have begun to where the first one ends."""
    begin = max(curve.points[0][0] for curve in curves)
    end = min(curve.points[-1][0] for curve in curves)
    steps = sorted({step for c in curves for step, _ in c.points if begin <= step <= end})
    columns = [[_value_at(curve, step) for curve in curves] for step in steps]
    return CurveBand(
        label,
        tuple(curves),
        tuple(steps),
        tuple(statistics.median(column) for column in columns),
        tuple(min(column) for column in columns),
        tuple(max(column) for column in columns),
    )


def _value_at(curve: LearningCurve, step: float) -> float:
    """The value of a curve at a step between its evaluations: interpolated linearly."""
    after = bisect_right(curve.points, (step, float("inf")))
    x0, y0 = curve.points[after - 1]
    if x0 == step:
        return y0
    x1, y1 = curve.points[after]
    return y0 + (y1 - y0) * (step - x0) / (x1 - x0)


def _draw(bands: Sequence[CurveBand], title: str, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, band in enumerate(bands):
        _draw_band(axes, band, f"C{number % 10}")
    if any(curve.solved for band in bands for curve in band.curves):
        axes.plot([], [], color="0.3", marker="*", ms=9, lw=0, label="solved")
    _style_axes(axes, title, many=any(len(band.curves) > 1 for band in bands))
    write_figure(figure, path)


def _draw_band(axes: Any, band: CurveBand, colour: str) -> None:
    """A single curve is a line. Several are thin lines, with their median and range as far as all of them go."""
    count = len(band.curves)
    for curve in band.curves:
        steps, values = zip(*curve.points, strict=True)
        if count > 1:
            axes.plot(steps, values, color=colour, lw=0.7, alpha=0.6, marker=_marker(steps), ms=2)
        if curve.solved:
            axes.plot(steps[-1], values[-1], color=colour, marker="*", ms=9)
    if count == 1:
        [curve] = band.curves
        steps, values = zip(*curve.points, strict=True)
        label, marker = band.label, _marker(steps)
        axes.plot(steps, values, color=colour, label=label, marker=marker, ms=3, lw=1.6)
        return
    label, marker = f"{band.label} ({count} runs)", _marker(band.steps)
    axes.plot(band.steps, band.median, color=colour, label=label, marker=marker, ms=3, lw=2.0)
    axes.fill_between(band.steps, band.low, band.high, color=colour, alpha=0.18, lw=0)


def _marker(steps: Sequence[float]) -> str:
    """The marker of each point. Without one a single point cannot be seen; many of them would hide the line."""
    return "o" if len(steps) < MARKED_POINTS else ""


def _style_axes(axes: Any, title: str, many: bool) -> None:
    axes.set_title(title, fontsize="medium", wrap=True)
    axes.set_xlabel("env steps")
    explained = "\n(thick: median, shaded: range, while all runs last)" if many else ""
    axes.set_ylabel(f"mean return of an evaluation{explained}")
    axes.xaxis.set_major_formatter(lambda value, _: _with_unit(value))
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="best", fontsize="small")


def _with_unit(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
