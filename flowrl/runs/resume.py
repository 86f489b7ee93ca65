"""Continues a run in its folder, from the newest snapshot that is whole."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl.core.errors import UsageError
from flowrl.core.state import Count
from flowrl.graph.model import Limits
from flowrl.runs.continued_graph import read_continued_graph
from flowrl.runs.registry import RegistryUnavailable, live_entries
from flowrl.runs.run import Run
from flowrl.runs.run_snapshots import ContinuedRun, Parent
from flowrl.runs.snapshot_files import StoredSnapshot, read_newest_snapshot
from flowrl.runs.token_file import TOKEN_FILE


def resumed_run(
    folder: Path,
    *,
    placement: str = "serial",
    limits: Limits | None = None,
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[Run, StoredSnapshot, str]:
    """Return the run that continues in this folder, its snapshot, and its changed settings in words.

    `limits` replace those of the run, and `settings`, as those of `--set`, values that leave its bits as they are.
    `options` are further arguments of `Run`.
    """
    require_ended(folder)
    stored = read_newest_snapshot(folder)
    has_hosts = options.get("rendezvous") is not None
    graph = read_continued_graph(folder, stored, settings or {}, placement, has_hosts)
    if not graph.computes_alike:
        sets = "".join(f" --set {shlex.quote(f'{k}={v}')}" for k, v in (settings or {}).items())
        raise UsageError(
            f"{folder}: a run continues with the graph that it had, and this changes what it computes:\n"
            f"{graph.difference}\nA new run can continue with it: flowrl fork {shlex.quote(str(folder))}{sets}"
        )
    new = graph.limits.overridden_by(limits or Limits())
    require_open_limits(folder, new, stored.snapshot.counts)
    parent = Parent(**stored.facts["parent"]) if stored.facts["parent"] else None
    run = Run(
        graph.checked,
        seed=int(stored.facts["seed"]),
        limits=new,
        placement=placement,
        hash_tokens=TOKEN_FILE in stored.snapshot.mark["files"],
        continued=ContinuedRun(folder, stored.snapshot, stored.state_digest, parent),
        **options,
    )
    return run, stored, graph.difference


def require_open_limits(folder: Path, limits: Limits, counts: Count) -> None:
    """Refuse limits that the run has reached already."""
    if reached := reached_limit(limits, counts):
        raise UsageError(f"{folder}: {reached}")


def reached_limit(limits: Limits, counts: Count) -> str:
    """Say which of the limits a run with these counts has reached; empty if it has reached none."""
    for option, limit, done, noun in (
        ("--steps", limits.steps, counts.env_steps, "env steps"),
        ("--train-iters", limits.train_iters, counts.train_iters, "train iterations"),
    ):
        if limit is not None and done >= limit:
            return (
                f"it has done {done:,} {noun}, and its limit is {limit:,}; give a greater {option}"
            )
    return ""


def require_ended(folder: Path) -> None:
    """Refuse a folder whose run is active."""
    try:
        entries = live_entries()
    except RegistryUnavailable:
        return
    for entry in entries:
        if Path(entry.run_dir).resolve() == folder.resolve():
            raise UsageError(
                f"{folder}: process {entry.pid} still runs it; `flowrl stop {folder}` ends it first"
            )
