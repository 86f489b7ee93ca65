"""Makes a new run that begins from a snapshot of another one, with changed settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import firings_before, paced_schedule_of
from flowrl.checks.lossy_edges import may_lack_tokens_anywhere
from flowrl.core.context import instance_key
from flowrl.core.errors import UsageError
from flowrl.graph.expand import expand
from flowrl.graph.model import Graph, Limits, SnapshotSettings
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import make_layout
from flowrl.runs.continued_graph import ContinuedGraph, read_continued_graph
from flowrl.runs.resume import require_open_limits
from flowrl.runs.run import Run
from flowrl.runs.run_snapshots import ContinuedRun, Parent
from flowrl.runs.snapshot_files import StoredSnapshot, read_newest_snapshot, read_snapshot_after
from flowrl.runtime.control.cuts import CutPlanner
from flowrl.runtime.sites.part_sites import site_of_parts
from flowrl.runtime.snapshot import is_node_key, node_key, reseeded_parts
from flowrl.runtime.snapshot_schedule import Snapshot

SEED_BYTES = 4  # of a seed that nobody chose


def forked_run(
    folder: Path,
    *,
    after_rounds: int | None = None,
    settings: Mapping[str, str] | None = None,
    seed: int | None = None,
    same_random: bool = False,
    limits: Limits | None = None,
    placement: str = "serial",
    **options: Any,
) -> tuple[Run, StoredSnapshot, str]:
    """Return the new run, the snapshot with which it begins, and its changed settings in words.

    `after_rounds` names a snapshot of the run in `folder`; by default it is the newest. `settings` are those of
    `--set`. With `same_random` the new run continues the random numbers of its parent. `options` are further arguments
    of `Run`.
    """
    if after_rounds is None:
        stored = read_newest_snapshot(folder)
    else:
        stored = read_snapshot_after(folder, after_rounds)
    has_hosts = options.get("rendezvous") is not None
    changed = read_continued_graph(folder, stored, settings or {}, placement, has_hosts)
    new_limits = changed.limits.overridden_by(limits or Limits())
    require_open_limits(folder, new_limits, stored.snapshot.counts)
    _require_fit(folder, changed.checked, stored.snapshot)
    chosen = _chosen_seed(changed, stored, seed, same_random)
    snapshot = stored.snapshot
    if not same_random:
        snapshot = replace(snapshot, parts=reseeded_parts(snapshot.parts))
    parent = Parent(str(folder), snapshot.rounds, stored.state_digest, same_random)
    run = Run(
        changed.checked,
        seed=chosen,
        limits=new_limits,
        placement=placement,
        continued=ContinuedRun(None, snapshot, stored.state_digest, parent),
        **options,
    )
    return run, stored, changed.difference


def _chosen_seed(
    changed: ContinuedGraph, stored: StoredSnapshot, seed: int | None, same_random: bool
) -> int:
    """Return the seed of the new run. One that nobody chose follows from the snapshot and the settings."""
    if same_random:
        if seed is not None or changed.changes_seed:
            raise UsageError(
                "--same-random continues the random numbers of the parent, and another seed gives others; "
                "leave one of them out"
            )
        return int(stored.facts["seed"])
    if seed is not None:
        return seed
    graph = changed.checked.graph
    if changed.changes_seed:
        return graph.seed
    text = f"{stored.state_digest}/{_computing_text(graph)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "little") >> 1


def _computing_text(graph: Graph) -> str:
    """Return the resolved graph without where it runs and where it ends."""
    return expand(replace(graph, limits=Limits(), snapshots=SnapshotSettings(), placements={}))


def _require_fit(folder: Path, checked: CheckedGraph, snapshot: Snapshot) -> None:
    """Refuse a graph whose nodes, edges or rounds are not those of the snapshot."""
    graph, program = checked.graph, checked.program
    layout = make_layout(graph, resolve_placement(graph, "serial"))
    called = {
        node_key(instance_key(name, replica))
        for name, spec in graph.nodes.items()
        if not spec.fires
        for replica in range(spec.replicas)
    }
    expected, saved = set(site_of_parts(checked, layout)), set(snapshot.parts)
    for keys, what in (
        (expected - called - saved, "has no state of"),
        (saved - expected, "has the state of"),
    ):
        if keys:
            names = ", ".join(f"'{_part_name(key)}'" for key in sorted(keys))
            tail = "" if keys <= expected else ", which the changed graph does not have"
            raise UsageError(
                f"{folder}: its snapshot {what} {names}{tail}; a fork keeps all nodes, edges and replicas"
            )
    lacking = may_lack_tokens_anywhere(program)
    for name, spec in graph.nodes.items():
        if not spec.fires or name in lacking or paced_schedule_of(program, name) is not None:
            continue
        fired = int(snapshot.parts[node_key(name)].state_dict()["fired"])
        expected_firings = firings_before(program, snapshot.rounds, name)
        if fired != expected_firings:
            raise UsageError(
                f"{folder}: '{name}' had fired {fired:,} times after {snapshot.rounds:,} rounds, and in the changed "
                f"graph it would have fired {expected_firings:,} times; a fork keeps the warm-up, and how often nodes "
                "fire in a round"
            )
    _require_equal_steps(folder, checked, snapshot)


def _require_equal_steps(folder: Path, checked: CheckedGraph, snapshot: Snapshot) -> None:
    """Refuse another number of env steps in a round, by which the round of `--steps` is found."""
    cuts = CutPlanner(checked, Limits())
    rounds = snapshot.rounds - cuts.warm_up_rounds
    if cuts.known_steps is None or rounds < 0:
        return
    in_warm_up, in_round = cuts.known_steps
    expected, done = in_warm_up + rounds * in_round, snapshot.counts.env_steps
    if expected != done:
        raise UsageError(
            f"{folder}: it had done {done:,} env steps after {snapshot.rounds:,} rounds, and with the changed graph it "
            f"would have done {expected:,}; a fork keeps the number of env steps in a round"
        )


def _part_name(key: str) -> str:
    """Return what a part of a snapshot belongs to: a node, an edge or a state."""
    name = key.partition("/")[2]
    return name if is_node_key(key) else name.partition(":")[0]
