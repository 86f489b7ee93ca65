"""How runs of one graph with several seeds ended, as data and as text for a terminal."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

from flowrl.core.text_table import table_lines
from flowrl.core.wording import clock_text, count_text
from flowrl.runs.result import RunResult, Status, return_text
from flowrl.runs.seed_statistics import SeedStatistics, seed_statistics

MEASURES = {  # fields of a run's result: their names in the table
    "eval_return": "last return",
    "best_return": "best return",
    "env_steps": "env steps",
    "training_s": "training time",
}
WIDTH = 120
ENDED: tuple[Status, ...] = ("solved", "finished")


@dataclass(frozen=True, slots=True)
class SeedResults:
    """The results of a graph's runs with several seeds, in the order of the seeds."""

    graph: str
    run_dir: str  # the folder with a folder for each seed
    at_once: int
    wall_s: float
    plot: str  # the picture of the learning curves; empty if no run has evaluations
    runs: tuple[RunResult, ...]

    @property
    def status(self) -> Status:
        """`failed` or `interrupted` if a seed is; `solved` if all are."""
        found = {run.status for run in self.runs}
        order: tuple[Status, ...] = ("failed", "interrupted", "finished", "solved")
        return next(status for status in order if status in found)

    def statistics(self) -> dict[str, SeedStatistics]:
        """The statistics of each measure over the runs that ended by themselves and have a value."""
        found = {}
        for name in MEASURES:
            values = [getattr(run, name) for run in self.runs if run.status in ENDED]
            if numbers := [float(value) for value in values if value is not None]:
                found[name] = seed_statistics(numbers)
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "graph": self.graph,
            "run_dir": self.run_dir,
            "status": self.status,
            "at_once": self.at_once,
            "wall_s": self.wall_s,
            "plot": self.plot,
            "seeds": [run.as_dict() for run in self.runs],
            "statistics": {n: dataclasses.asdict(s) for n, s in self.statistics().items()},
        }

    def __str__(self) -> str:
        """The summary in words, as the command line prints it."""
        return seed_results_text(self)


def seed_results_text(results: SeedResults) -> str:
    """A row for each seed, a row for the statistics of each measure, and where everything is."""
    statuses = Counter(run.status for run in results.runs)
    counted = ", ".join(f"{number} {status}" for status, number in statuses.items())
    seeds = count_text(len(results.runs), "seed")
    lines = [
        f"{results.graph}: {seeds} ({counted}), {results.at_once} at once, {results.wall_s:.1f} s",
        "",
        *_seed_lines(results.runs),
    ]
    if statistics := results.statistics():
        lines += ["", *_statistics_lines(statistics)]
    lines += ["", *_remarks(results.runs)]
    if results.plot:
        lines.append(f"picture {results.plot}")
    lines.append(f"folder {results.run_dir}")
    return "\n".join(lines)


def _seed_lines(runs: tuple[RunResult, ...]) -> list[str]:
    names = ["seed", "status", *MEASURES.values(), "train iters", "digest"]
    rows = [
        [
            str(run.seed),
            run.status,
            *(_value_text(name, getattr(run, name)) for name in MEASURES),
            f"{run.train_iters:,}",
            run.digest[:12],
        ]
        for run in runs
    ]
    return table_lines([names, *rows], "llrrrrrl")


def _statistics_lines(statistics: dict[str, SeedStatistics]) -> list[str]:
    names = ["", "seeds", "median", "mean ± deviation", "interquartile mean", "95 % interval"]
    rows = []
    for name, found in statistics.items():
        mean = _value_text(name, found.mean)
        deviation = "" if found.deviation is None else f" ± {_value_text(name, found.deviation)}"
        interval = [_value_text(name, end) for end in found.interval or ()]
        rows.append(
            [
                MEASURES[name],
                str(found.count),
                _value_text(name, found.median),
                f"{mean}{deviation}",
                _value_text(name, found.interquartile_mean),
                " to ".join(interval),
            ]
        )
    return table_lines([names, *rows], "l")


def _value_text(measure: str, value: float | None) -> str:
    if value is None:
        return ""
    if measure == "env_steps":
        return f"{value:,.0f}"
    if measure == "training_s":
        return clock_text(value) if value >= 60 else f"{value:.1f} s"
    return return_text(value)


def _remarks(runs: tuple[RunResult, ...]) -> list[str]:
    """Why seeds failed, and what else should be known of a run. What several seeds share is said once."""
    remarks: dict[str, list[str]] = {}
    for run in runs:
        why = [f"failed: {run.why}"] if run.status == "failed" else []
        noted = [f"note: {line}" for line in run.happened]
        for text in (*why, *noted, *(f"warning: {line}" for line in run.warnings)):
            remarks.setdefault(text, []).append(str(run.seed))
    return [
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(seeds)} {text}"
        for text, seeds in remarks.items()
    ]
