"""What a person sees of a run while it lasts: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

from flowrl.core.records import MetricsRecord, Record
from flowrl.core.state import Count
from flowrl.core.wording import count_text
from flowrl.runs.result import return_text
from flowrl.runs.top import clock_text
from flowrl.runtime.records import RecordSource

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from flowrl.checks.check import CheckedGraph
    from flowrl.runs.run import Run

REFRESH_PER_S = 4
RATE_S = 5.0  # rates are averages over at least this time
LINE_EVERY_S = 5.0
SHOWN_SITES = 4  # by name
BAR_WIDTH = 20  # characters
STOPPING = "stopping after this round; Ctrl-C again stops at once"


class Watcher:
    """Is notified of what happens in a run. This base class ignores everything.

    The thread that runs the graph calls all methods but `note` and `stopping`, and an error of theirs ends the run.
    """

    def begin(self, run: Run) -> None:
        """The run's folder exists (`run.run_dir`), and `run.settings` are known; its nodes are not made yet."""

    def note(self, run: Run, text: str) -> None:
        """Something happened to the run itself; for example, a host joined."""

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        """A node emitted a record: `MetricsRecord` has its metrics, and a text is a line of its log."""

    def stopping(self, run: Run) -> None:
        """The run was asked to stop. A signal handler may call this, so it must not use Python's buffered output."""

    def end(self, run: Run) -> None:
        """The run has ended, whether it succeeded or not; `run.ended` is its result. Not called if `begin` failed."""


class Watchers(Watcher):
    """Notifies several watchers. All that have begun hear of the end, also if another one fails."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers
        self._begun: list[Watcher] = []

    def begin(self, run: Run) -> None:
        for watcher in self._watchers:
            watcher.begin(run)
            self._begun.append(watcher)

    def note(self, run: Run, text: str) -> None:
        for watcher in self._watchers:
            watcher.note(run, text)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        for watcher in self._watchers:
            watcher.event(run, source, record)

    def stopping(self, run: Run) -> None:
        for watcher in self._watchers:
            watcher.stopping(run)

    def end(self, run: Run) -> None:
        with contextlib.ExitStack() as stack:
            for watcher in reversed(self._begun):
                stack.callback(watcher.end, run)


def watcher_for(quiet: bool) -> Watcher:
    """The watcher that suits standard output."""
    if quiet:
        return Watcher()
    return LiveDisplay() if sys.stdout.isatty() else LineDisplay()


def print_warnings(checked: CheckedGraph) -> None:
    """Print the warnings of a graph that will run."""
    for warning in checked.warnings:
        print(f"warning: {warning}", file=sys.stderr)


class LineDisplay(Watcher):
    """Prints a line when the run begins, one for each evaluation, and one after some seconds without another."""

    def __init__(self, every_s: float = LINE_EVERY_S) -> None:
        self._every_s = every_s
        self._printed = self._ended = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, run: Run) -> None:
        self._print(begin_line(run))
        # The thread prints while nodes are made, too, and while a firing lasts.
        self._thread = threading.Thread(
            target=self._print_progress, args=(run,), name="flowrl progress", daemon=True
        )
        self._thread.start()

    def note(self, run: Run, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if isinstance(record, MetricsRecord) and source.role == "evaluator":
            self._print(evaluation_line(run, source, record))

    def stopping(self, run: Run) -> None:
        os.write(2, f"{STOPPING}\n".encode())

    def end(self, run: Run) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _print(self, line: str) -> None:
        with self._changed:
            print(line, flush=True)
            self._printed = True
            self._changed.notify()

    def _print_progress(self, run: Run) -> None:
        """Print the progress whenever no other line was printed for a while, until the run ends."""
        with self._changed:
            while not self._ended:
                self._printed = False
                self._changed.wait(self._every_s)
                if not (self._printed or self._ended):
                    print(progress_line(run), flush=True)


class LiveDisplay(Watcher):
    """Prints a line for each new best evaluation, above a table that is redrawn some times a second."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._rate = ProgressRate()
        self._best = -math.inf
        self._note = ""

    def begin(self, run: Run) -> None:
        from rich.live import Live

        self._live = Live(
            get_renderable=lambda: self.picture(run),
            refresh_per_second=REFRESH_PER_S,
            transient=True,
        )
        self._live.start()  # a thread of its own draws
        self._live.console.print(begin_line(run), highlight=False, style="dim", soft_wrap=True)

    def note(self, run: Run, text: str) -> None:
        if self._live is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._live.console.print(text, highlight=False, soft_wrap=True)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        is_evaluation = isinstance(record, MetricsRecord) and source.role == "evaluator"
        if not is_evaluation or self._live is None:
            return
        assert isinstance(record, MetricsRecord)
        mean = record.values.get("return_mean", math.inf)
        if mean > self._best:
            self._best = mean
            line = evaluation_line(run, source, record)
            self._live.console.print(line, highlight=False, soft_wrap=True)

    def stopping(self, run: Run) -> None:
        self._note = STOPPING  # drawn with the next picture

    def end(self, run: Run) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def picture(self, run: Run) -> Group:
        from rich.console import Group
        from rich.text import Text

        if waiting := waiting_text(run):
            return Group(Text(waiting, style="bold"))
        note = [Text(self._note, style="yellow")] if self._note else []
        return Group(Text(self.headline(run), style="bold"), node_table(run), *note)

    def headline(self, run: Run) -> str:
        """Counts and rate on one line; return, elapsed time and, if there is a limit, the time left on another."""
        counts, times = run.counts, [clock_text(run.wall_s)]
        left_s = time_left_s(run)
        if left_s is not None:
            times.append(f"{clock_text(left_s)} left at most")
        if run.eval_return is not None:
            best = "" if run.best_return is None else f" (best {return_text(run.best_return)})"
            times.insert(0, f"return {return_text(run.eval_return)}{best}")
        rate = f"{self._rate.at(run.firing_s, counts.env_steps):,.0f}/s"
        steps = [f"{counts.env_steps:,} env steps", rate, f"{counts.train_iters:,} train iters"]
        return f"{' · '.join(steps)}\n{' · '.join(times)}"


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


def node_table(run: Run) -> Table:
    """A row for each instance and each of its parts: its firings (of services: calls), and its share of the time."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("node")
    for name in ("firings", "ms each", "of the time"):
        table.add_column(name, justify="right")
    table.add_column("")
    firing_s = max(run.firing_s, 1e-9)
    for node in run.node_stats():
        if not node.fired:  # a share of the first moments would say nothing
            table.add_row(node.instance, "0", "", "")
            continue
        fired = f"{node.fired:,} calls" if node.is_service else f"{node.fired:,}"
        table.add_row(node.instance, fired, *_time_cells(node.busy_s, node.fired, firing_s))
        for part, s in node.parts_s.items():
            table.add_row(f"  {part}", "", *_time_cells(s, node.fired, firing_s), style="dim")
    return table


def _time_cells(busy_s: float, times: int, firing_s: float) -> tuple[str, str, str]:
    """Milliseconds each, the share of the time, and the same as a bar."""
    share = busy_s / firing_s
    return f"{1e3 * busy_s / times:.2f}", f"{share:.0%}", "█" * round(BAR_WIDTH * share)


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
