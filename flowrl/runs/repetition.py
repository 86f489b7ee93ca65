"""Runs a graph for a short time on one site and in processes, and compares the runs bit by bit."""

from __future__ import annotations

import filecmp
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import UsageError
from flowrl.core.wording import count_text
from flowrl.graph.model import Limits
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runs.token_diff import diff_tokens
from flowrl.runs.token_file import TOKEN_FILE

PLACEMENTS = ("serial", "processes")
USUAL_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Repetition:
    """What two runs of a graph had in common."""

    results: tuple[RunResult, RunResult]
    differences: tuple[str, ...]  # in words; none if all bits are equal
    unsaved: tuple[
        str, ...
    ] = ()  # why the state at the end could not be saved, if the graph does not forbid to

    @property
    def is_exact(self) -> bool:
        return not self.differences

    def as_dict(self) -> Mapping[str, Any]:
        keys = ("placement", "env_steps", "train_iters", "digest", "state_digest")
        runs = [{key: getattr(result, key) for key in keys} for result in self.results]
        found = {"equal": self.is_exact, "differences": list(self.differences), "runs": runs}
        return {**found, "unsaved": list(self.unsaved)}

    def __str__(self) -> str:
        return "\n".join((*map(result_line, self.results), self.verdict, *self.unsaved))

    @property
    def verdict(self) -> str:
        """Whether the runs are equal, and otherwise what differs."""
        if self.is_exact:
            state = ", and the whole state at the end" if has_equal_rounds(*self.results) else ""
            return f"equal: all tokens and the weights{state}"
        return "\n".join(("different:", *(f"  {line}" for line in self.differences)))


def short_limits(train_iters: int | None, rounds: int | None) -> Limits:
    """Return the limits of both runs, which replace those of the graph."""
    if train_iters is None and rounds is None:
        rounds = USUAL_ROUNDS
    return Limits(train_iters=train_iters, rounds=rounds)


def run_twice(checked: CheckedGraph, limits: Limits) -> Repetition:
    """Run the graph up to these limits in each of `PLACEMENTS`, and compare the runs."""
    require_deterministic(checked, "check --twice")
    with tempfile.TemporaryDirectory(prefix="flowrl-twice-") as folder:
        runs = [
            _new_run(checked, limits, placement, Path(folder) / placement)
            for placement in PLACEMENTS
        ]
        first, second = (run.run() for run in runs)
        differences = compare_runs(first, second)
        if differences:
            again = _new_run(checked, limits, PLACEMENTS[0], Path(folder) / "again").run()
            differences.append(_cause(not compare_runs(first, again)))
    return Repetition((first, second), tuple(differences), _problems_of_snapshots(runs))


def _problems_of_snapshots(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return why the runs could not save their states."""
    found = [run.snapshots.problems for run in runs if run.snapshots is not None]
    is_off = any(run.graph.snapshots.is_off for run in runs)
    return () if is_off else tuple(dict.fromkeys(chain.from_iterable(found)))


def require_deterministic(checked: CheckedGraph, command: str) -> None:
    """Refuse a graph of which two runs may differ."""
    checked.require_sound()
    if not checked.deterministic:
        reasons = "; ".join(checked.reasons)
        raise UsageError(
            f"{command}: two runs of {checked.graph.name} may differ: {reasons}; only the runs of deterministic "
            "graphs are equal"
        )


def result_line(result: RunResult) -> str:
    """Return the placement, the length and the digests of a run as one line."""
    digests = [f"digest {result.digest[:12] or 'none'}"]
    if result.state_digest:
        digests.append(f"state {result.state_digest[:12]} after {result.snapshot_rounds} rounds")
    amounts = [
        count_text(result.train_iters, "train iteration"),
        count_text(result.env_steps, "env step"),
    ]
    return f"{result.placement}: {', '.join(amounts)}; {', '.join(digests)}"


def _new_run(checked: CheckedGraph, limits: Limits, placement: str, folder: Path) -> Run:
    return Run(
        checked,
        limits=limits,
        placement=placement,
        out=folder,
        hash_tokens=True,
        saves_at_end=True,
    )


def compare_runs(first: RunResult, second: RunResult) -> list[str]:
    """Return what differs in two runs that have hashed their tokens."""
    found = []
    for name in ("digest", *(("state_digest",) if has_equal_rounds(first, second) else ())):
        one, two = getattr(first, name), getattr(second, name)
        if one != two:
            found.append(f"{name}: {one[:12] or 'none'} -> {two[:12] or 'none'}")
    a, b = Path(first.run_dir), Path(second.run_dir)
    if not filecmp.cmp(a / TOKEN_FILE, b / TOKEN_FILE, shallow=False):
        found += diff_tokens(a, b, equal_graphs=True).splitlines()
    return found


def has_equal_rounds(first: RunResult, second: RunResult) -> bool:
    """Return whether the newest snapshots of two runs are of the same moment."""
    return first.snapshot_rounds is not None and first.snapshot_rounds == second.snapshot_rounds


def _cause(is_repeatable: bool) -> str:
    """Say whether the difference is one of placements."""
    if is_repeatable:
        return "two runs on one site are equal, so the difference is that of the placement"
    return "two runs on one site differ, too"
