"""The summary of a run: how it went so far, what it lost, and where its time went."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import known_env_steps
from flowrl.core.node import Load
from flowrl.core.records import CheckpointRecord, MetricsRecord, Record
from flowrl.graph.model import Limits, NodeSpec
from flowrl.machine.cores import usable_cores
from flowrl.runs.result import RunResult, Status, bottleneck_sentence, finite
from flowrl.runs.run_snapshots import inexact_reason
from flowrl.runs.run_status import status_of
from flowrl.runtime.executor import Cut
from flowrl.runtime.records import RecordSource
from flowrl.runtime.status import NodeStats

if TYPE_CHECKING:
    from flowrl.runs.run import Run

ROUNDING = 0.05  # the share of a core that is no work: a core used for 5 % counts as idle


def summary_of(run: Run, status: Status, why: str, digest: str, repeat: str) -> RunResult:
    """Return the summary of a run as it is now."""
    wall_s, setup_s, training_s = run.wall_s, run.setup_s, run.training_s
    counts, executor = run.counts, run.executor
    earlier_steps = run.continued.snapshot.counts.env_steps if run.continued else 0
    new_steps = counts.env_steps - earlier_steps
    return RunResult(
        graph=run.graph.name,
        run_dir=run.run_dir,
        placement=run.placement,
        status=status,
        deterministic=run.checked.deterministic,
        env_steps=counts.env_steps,
        train_iters=counts.train_iters,
        episodes=counts.episodes,
        eval_return=finite(run.eval_return),
        best_return=finite(run.best_return),
        wall_s=round(wall_s, 3),
        env_steps_per_s=round(new_steps / training_s, 1) if training_s else 0.0,
        bottleneck=bottleneck_sentence(
            run.node_stats(), run.firing_s, lambda node: _remedy(run, node)
        ),
        digest=digest,
        seed=run.seed,
        why=why,
        repeat=repeat,
        **_snapshot_facts(run),
        recoveries=run.recovery.count,
        setup_s=round(setup_s, 3),
        training_s=round(training_s, 3),
        shutdown_s=round(max(wall_s - setup_s - training_s, 0.0), 3),
        network_bytes={
            edge.edge: {"tokens": edge.bytes, "sent": edge.wire_bytes}
            for edge in status_of(run).edges
            if edge.bytes is not None and edge.wire_bytes is not None
        },
        happened=(
            *run.recovery.lines,
            *_inexact_lines(run),
            *(executor.irregularity_lines() if executor else ()),
            *run.left_open,
        ),
        warnings=(
            *run.hints,
            *run.sites.warnings,
            *(run.sites.hosts.warnings() if run.sites.hosts else ()),
            *(executor.warnings() if executor else ()),
            *(run.snapshots.problems if run.snapshots else ()),
        ),
    )


def long_warmup_lines(checked: CheckedGraph, limits: Limits, cut: Cut) -> tuple[str, ...]:
    """Say that the warm-up alone had reached the limit of env steps at which a run ended, if it had."""
    known = known_env_steps(checked.graph, checked.program, checked.facts)
    if cut.reason != "steps" or cut.rounds != 1 or known is None or known[0] < (limits.steps or 0):
        return ()
    return (
        f"the warm-up took {known[0]:,} env steps, and {limits.steps:,} were asked for; so the run ended one "
        "round later",
    )


def _snapshot_facts(run: Run) -> dict[str, Any]:
    """Return where the run comes from, its newest snapshot, and the command that continues it from there."""
    after = run.continued.snapshot.rounds if run.continued else None
    facts = {"resumed_after": after, "parent": run.parent}
    newest = run.snapshots.newest if run.snapshots else None
    if newest is None:
        return facts
    return {
        **facts,
        "snapshot_rounds": newest.rounds,
        "state_digest": newest.state_digest,
        "resume": f"flowrl resume {shlex.quote(run.run_dir)}",
    }


def _inexact_lines(run: Run) -> list[str]:
    """Say that a run that was continued is another one than it would have been, if it is."""
    reason = inexact_reason(run.checked, run.sites.is_single)
    if not reason or run.recovery.snapshot is None:
        return []
    return [f"the run was continued, and not exactly as it would have gone on: {reason}"]


def _remedy(run: Run, node: NodeStats) -> str:
    """Return what can be changed if this node is the bottleneck."""
    spec = _spec_of(run, node)
    load = Load(node.busy_s / max(node.fired, 1), _threads_of(run, node), _idle_cores(run))
    return spec.cls.remedy(spec.config, load)


def _spec_of(run: Run, node: NodeStats) -> NodeSpec:
    return run.graph.nodes[node.instance.partition("#")[0]]


def _threads_of(run: Run, node: NodeStats) -> int:
    return _spec_of(run, node).torch_threads or run.graph.torch_threads


def _idle_cores(run: Run) -> int:
    """Return how many cores of this machine nothing of the run used; 0 if it is unknown, because there are hosts."""
    if run.sites.hosts is not None or not run.firing_s:
        return 0
    used_s = sum(node.busy_s * _threads_of(run, node) for node in run.node_stats())
    return int(max(usable_cores() - used_s / run.firing_s + ROUNDING, 0))


class EvaluationReturns:
    """The latest and the best return of the first evaluator, which the summary shows."""

    def __init__(self, first_evaluator: str, first_learner: str = "") -> None:
        self._first = {"evaluator": first_evaluator, "learner": first_learner}
        self.last: float | None = None
        self.best: float | None = None

    def take_in(self, source: RecordSource, record: Record) -> Record:
        """Remember the returns of a record, and return the record that is written.

        Checkpoints of other evaluators are renamed, as the returns of several evaluators cannot be compared, and so are
        those of other learners, which have the same names.
        """
        if source.key != self._first.get(source.role, source.key):
            return _renamed(record, source) if isinstance(record, CheckpointRecord) else record
        if source.role != "evaluator":
            return record
        if isinstance(record, MetricsRecord):
            self.last = record.values.get("return_mean", self.last)
        elif isinstance(record, CheckpointRecord) and record.name == "best":
            self.best = record.info.get("eval_return", self.best)
        return record


def _renamed(record: CheckpointRecord, source: RecordSource) -> CheckpointRecord:
    """The checkpoint with the name of its node."""
    owner = source.key.replace("/", "__")
    replaces = f"{record.replaces}-{owner}" if record.replaces else ""
    return replace(record, name=f"{record.name}-{owner}", replaces=replaces)
