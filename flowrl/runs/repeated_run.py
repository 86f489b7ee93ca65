"""Repeats a run that has ended, from a snapshot or from its beginning, in another folder and with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowrl.checks.check import check_placed
from flowrl.core.errors import UsageError
from flowrl.core.json_text import parse_object
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Limits
from flowrl.runs.continued_graph import GRAPH_FILE
from flowrl.runs.folder import ENVIRONMENT_FILE
from flowrl.runs.fork import forked_run
from flowrl.runs.resume import reached_limit
from flowrl.runs.run import Run
from flowrl.runs.snapshot_files import read_counts_and_facts, rounds_of, snapshot_folders


def repeated_run(folder: Path, after_rounds: int | None, limits: Limits, **options: Any) -> Run:
    """Return the run that repeats the one of a folder, up to its limits or to those that are given.

    It begins after so many rounds, or by default with the newest snapshot before these limits; without a snapshot, or
    with 0, it begins anew. `options` are further arguments of `Run`.
    """
    if after_rounds == 0:
        return _begun_anew(folder, limits, options)
    if after_rounds is not None:
        return _from_snapshot(folder, after_rounds, limits, options)
    for path in snapshot_folders(folder):
        counts, facts = read_counts_and_facts(path)
        known = Limits(**facts["limits"])
        if not reached_limit(known.overridden_by(limits), counts):
            return _from_snapshot(folder, rounds_of(path), limits, options)
    return _begun_anew(folder, limits, options)


def read_parent(folder: Path) -> dict[str, Any] | None:
    """Return the parent of a run that is a fork."""
    try:
        found = parse_object((folder / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    parent: dict[str, Any] | None = found.get("parent")
    return parent


def _from_snapshot(folder: Path, rounds: int, limits: Limits, options: dict[str, Any]) -> Run:
    run, _, _ = forked_run(folder, after_rounds=rounds, same_random=True, limits=limits, **options)
    return run


def _begun_anew(folder: Path, limits: Limits, options: dict[str, Any]) -> Run:
    has_hosts = options.get("rendezvous") is not None
    loaded = load_graph(folder / GRAPH_FILE)
    checked = check_placed(loaded, options.get("placement"), has_hosts).require_sound()
    parent = read_parent(folder)
    if parent is not None:
        raise UsageError(
            f"{folder}: it is a fork without a snapshot before this end, so it has no beginning of its own; repeat the "
            f"fork: flowrl fork {parent['run_dir']} --at {parent['rounds']} …"
        )
    return Run(checked, limits=checked.graph.limits.overridden_by(limits), **options)
