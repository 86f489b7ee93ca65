"""Runs a graph for a short time: on one site, in processes, and continued from a snapshot; compares all bits."""

from __future__ import annotations

import filecmp
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import FlowError, UsageError
from flowrl.core.wording import count_text
from flowrl.graph.model import Limits
from flowrl.graph.output_paths import with_outputs_in
from flowrl.runs.folder import METRICS_FILE
from flowrl.runs.result import RunResult
from flowrl.runs.resume import resumed_run
from flowrl.runs.run import Run
from flowrl.runs.token_diff import diff_tokens
from flowrl.runs.token_file import TOKEN_FILE

PLACEMENTS = ("serial", "processes")
USUAL_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a run that continued from a snapshot had in common with one without a stop."""

    after_rounds: int  # the completed rounds at the snapshot, those of the warm-up included
    differences: tuple[str, ...]  # in words; none if all bits are equal

    @property
    def verdict(self) -> str:
        where = f"continued in processes after {count_text(self.after_rounds, 'round')}"
        if not self.differences:
            return f"{where}: equal"
        hint = (
            "something that changes is not in the saved state of a node, a part of it or an env; "
            "see `flowrl docs snapshots`"
        )
        return "\n".join((f"{where}: different; {hint}", *(f"  {d}" for d in self.differences)))


@dataclass(frozen=True, slots=True)
class Repetition:
    """What two runs of a graph had in common."""

    results: tuple[RunResult, RunResult]
    differences: tuple[str, ...]  # in words; none if all bits are equal
    # Why the state at the end could not be saved, if the graph does not forbid to.
    unsaved: tuple[str, ...] = ()
    continued: Continuation | None = None

    @property
    def is_exact(self) -> bool:
        return not self.differences

    @property
    def is_continued_exactly(self) -> bool:
        """Whether the state was saved, and a run that continued from it had the same bits."""
        return not self.unsaved and (self.continued is None or not self.continued.differences)

    def as_dict(self) -> Mapping[str, Any]:
        keys = ("placement", "env_steps", "train_iters", "digest", "state_digest")
        runs = [{key: getattr(result, key) for key in keys} for result in self.results]
        found = {"equal": self.is_exact, "differences": list(self.differences), "runs": runs}
        continued = None if self.continued is None else asdict(self.continued)
        return {**found, "unsaved": list(self.unsaved), "continued": continued}

    def __str__(self) -> str:
        continued = () if self.continued is None else (self.continued.verdict,)
        return "\n".join((*map(result_line, self.results), self.verdict, *self.unsaved, *continued))

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
    """Run the graph up to these limits in each of `PLACEMENTS`, and compare the runs.

    If they are equal, another run is stopped half-way, continued from its snapshot, and compared with them.
    """
    require_deterministic(checked, "check --twice")
    with tempfile.TemporaryDirectory(prefix="flowrl-twice-") as folder:
        runs = [
            _new_run(checked, limits, placement, Path(folder) / placement)
            for placement in PLACEMENTS
        ]
        first, second = map(whole_result, runs)
        differences = compare_runs(first, second)
        if differences:
            again = whole_result(_new_run(checked, limits, PLACEMENTS[0], Path(folder) / "again"))
            differences.append(_cause(not compare_runs(first, again)))
        unsaved = _problems_of_snapshots(runs)
        is_comparable = not (differences or unsaved or checked.graph.snapshots.is_off)
        continued = _continue(checked, limits, first, Path(folder)) if is_comparable else None
    return Repetition((first, second), tuple(differences), unsaved, continued)


def _continue(
    checked: CheckedGraph, limits: Limits, whole: RunResult, folder: Path
) -> Continuation | None:
    """Run half of a run, continue it in processes, and compare it with the whole one; None if it is too short."""
    half = Limits(rounds=_half(limits.rounds), train_iters=_half(limits.train_iters))
    if 0 in (half.rounds, half.train_iters):
        return None
    begun = whole_result(_new_run(checked, half, PLACEMENTS[0], folder / "continued"))
    if begun.snapshot_rounds is None:
        return None
    try:
        run, _, _ = resumed_run(
            folder / "continued", placement=PLACEMENTS[1], limits=limits, saves_at_end=True
        )
        result = whole_result(run)
    except FlowError as error:
        return Continuation(begun.snapshot_rounds, (str(error),))
    differences = compare_runs(whole, result)
    if not _are_equal(*(Path(r.run_dir) / METRICS_FILE for r in (whole, result))):
        differences.append(f"{METRICS_FILE}: other metrics")
    if differences:
        differences += result.happened
    return Continuation(begun.snapshot_rounds, tuple(differences))


def whole_result(run: Run) -> RunResult:
    """Execute a run that is to be compared, and return its result. If it was stopped, there is nothing to compare."""
    result = run.run()
    if result.status == "interrupted":
        raise KeyboardInterrupt("" if result.why == "SIGINT" else result.why)
    return result


def _half(limit: int | None) -> int | None:
    return None if limit is None else limit // 2


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


def with_own_outputs(checked: CheckedGraph, folder: Path) -> CheckedGraph:
    """Return the graph of a trial run in this folder: what its nodes write for later is beside the folder instead."""
    outputs = folder.with_name(f"{folder.name}-outputs")
    return replace(checked, graph=with_outputs_in(checked.graph, outputs))


def _new_run(checked: CheckedGraph, limits: Limits, placement: str, folder: Path) -> Run:
    return Run(
        with_own_outputs(checked, folder),
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


def _are_equal(one: Path, two: Path) -> bool:
    """Whether two files are equal. A run in which no node has reported anything has no file of metrics."""
    if not one.exists() or not two.exists():
        return one.exists() == two.exists()
    return filecmp.cmp(one, two, shallow=False)
