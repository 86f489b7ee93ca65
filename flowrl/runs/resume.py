"""Continues a run in its folder, from the newest snapshot that is whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from flowrl.checks.check import check
from flowrl.core.errors import UsageError
from flowrl.core.state import Count
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Limits
from flowrl.runs.registry import RegistryUnavailable, live_entries
from flowrl.runs.run import Run
from flowrl.runs.run_snapshots import ContinuedRun
from flowrl.runs.snapshot_files import StoredSnapshot, read_newest_snapshot
from flowrl.runs.token_file import TOKEN_FILE


def resumed_run(
    folder: Path, *, placement: str = "serial", limits: Limits | None = None, **options: Any
) -> tuple[Run, StoredSnapshot]:
    """Return the run that continues in this folder, and its snapshot. `limits` replace those of the run.

    `options` are further arguments of `Run`.
    """
    _require_ended(folder)
    stored = read_newest_snapshot(folder)
    checked = check(load_graph(folder / "graph.yaml")).require_sound()
    named = replace(checked.graph, name=str(stored.facts["graph"]))
    checked = replace(checked, graph=named)
    known = Limits(**stored.facts["limits"])
    given = limits or Limits()
    new = known.overridden_by(**{n: getattr(given, n) for n in Limits.__slots__})
    _require_open_limits(folder, new, stored.snapshot.counts)
    run = Run(
        checked,
        seed=int(stored.facts["seed"]),
        limits=new,
        placement=placement,
        hash_tokens=TOKEN_FILE in stored.snapshot.mark["files"],
        continued=ContinuedRun(folder, stored.snapshot, stored.state_digest),
        **options,
    )
    return run, stored


def _require_open_limits(folder: Path, limits: Limits, counts: Count) -> None:
    """Refuse limits that the run has reached already."""
    for option, limit, done, noun in (
        ("--steps", limits.steps, counts.env_steps, "env steps"),
        ("--train-iters", limits.train_iters, counts.train_iters, "train iterations"),
    ):
        if limit is not None and done >= limit:
            raise UsageError(
                f"{folder}: it has done {done:,} {noun}, and its limit is {limit:,}; give a greater {option}"
            )


def _require_ended(folder: Path) -> None:
    try:
        entries = live_entries()
    except RegistryUnavailable:
        return
    for entry in entries:
        if Path(entry.run_dir).resolve() == folder.resolve():
            raise UsageError(
                f"{folder}: process {entry.pid} still runs it; `flowrl stop {folder}` ends it first"
            )
