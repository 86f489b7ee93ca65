"""The progress of a run in words and numbers: lines for people, and the rate and time left that they show."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from flowrl.core.records import MetricsRecord
from flowrl.core.state import Count
from flowrl.core.wording import count_text
from flowrl.runs.result import return_text
from flowrl.runtime.records import RecordSource

if TYPE_CHECKING:
    from flowrl.runs.run import Run

RATE_S = 5.0  # rates are averages over at least this time
SHOWN_SITES = 4  # by name


class ProgressRate:
    """A count's increase a second, over the last seconds.

    A count increases at the ends of rounds, which may take long. So it is compared between times at which it increased;
    otherwise the rate would drop to 0 again and again. It is 0 if the next increase is long overdue.
    """

    def __init__(self) -> None:
        # Each is a time, and the count from then on.
        self._increases: deque[tuple[float, int]] = deque([(0.0, 0)])

    def at(self, now_s: float, count: int) -> float:
        increases = self._increases
        if count > increases[-1][1]:
            increases.append((now_s, count))
        while len(increases) > 2 and increases[-1][0] - increases[1][0] >= RATE_S:
            increases.popleft()
        (first_s, first), (last_s, last) = increases[0], increases[-1]
        longest_s = max((b[0] - a[0] for a, b in pairwise(increases)), default=0.0)
        is_overdue = now_s - last_s >= max(RATE_S, 2 * longest_s)
        return 0.0 if is_overdue else (last - first) / max(last_s - first_s, 1e-9)


def begin_line(run: Run) -> str:
    """The graph, the seed, the placement and the folder of a run that begins."""
    where = run.folder.path if run.folder else ""
    return f"{run.graph.name}: seed {run.seed}, {run.placement}, in {where}"


def evaluation_line(run: Run, source: RecordSource, record: MetricsRecord) -> str:
    mean = record.values.get("return_mean")
    shown = "" if mean is None else f"  return {return_text(mean)}"
    return f"{_counts_line(run, source.total)}{shown}{_evaluator_text(run, source)}"


def progress_line(run: Run) -> str:
    """What a run has done so far, or what it waits for before its first firing."""
    waiting = waiting_text(run)
    return f"{run.wall_s:7.1f} s  {waiting}" if waiting else _counts_line(run, run.counts)


def waiting_text(run: Run) -> str:
    """What a run does before its first firing; empty afterwards."""
    if run.executor is None and run.sites.hosts is not None:
        return f"{run.sites.hosts.arrival.text} …"
    if run.executor is None or run.executor.began_s is None:
        return making_text(run)
    return ""


def making_text(run: Run) -> str:
    """Which nodes are being made, and how many sites are not ready yet."""
    if run.executor is None:
        return f"making {run.making or 'nodes'} …"
    starting = [s for s in run.executor.site_statuses() if s.activity.kind == "starting"]
    made = [status.activity.instance for status in starting if status.activity.instance]
    silent = [status.site for status in starting if not status.activity.instance]
    parts = [f"making {', '.join(made[:SHOWN_SITES])}"] if made else []
    if silent:
        shown = ", ".join(silent[:SHOWN_SITES]) + (", …" if len(silent) > SHOWN_SITES else "")
        parts.append(f"starting {count_text(len(silent), 'site')}, importing modules: {shown}")
    return f"{'; '.join(parts) or 'waiting for the first firing'} …"


def _counts_line(run: Run, total: Count) -> str:
    return (
        f"{run.wall_s:7.1f} s  {total.env_steps:>9,} env steps  {total.train_iters:>7,} train iters"
    )


def _evaluator_text(run: Run, source: RecordSource) -> str:
    """The name of the evaluator, if there are several."""
    nodes = run.graph.nodes
    evaluators = sum(nodes[name].replicas for name in run.graph.nodes_of_role("evaluator"))
    return f"  by {source.key}" if evaluators > 1 else ""


def time_left_s(run: Run) -> float | None:
    """The time until the nearest limit is reached; None if that is not known. A verdict may end the run earlier."""
    counts, limits = run.counts, run.limits
    parts = [
        counts.env_steps / limits.steps if limits.steps else 0.0,
        counts.train_iters / limits.train_iters if limits.train_iters else 0.0,
        run.firing_s / limits.time_s if limits.time_s else 0.0,
    ]
    part = min(max(parts), 1.0)
    return run.firing_s * (1 - part) / part if part > 0.01 else None
