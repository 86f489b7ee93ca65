"""What a person sees of a run while it lasts: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import TYPE_CHECKING

from flowrl.core.records import MetricsRecord, Record
from flowrl.core.wording import clock_text
from flowrl.runs.progress_text import (
    ProgressRate,
    begin_line,
    evaluation_line,
    progress_line,
    time_left_s,
    waiting_text,
)
from flowrl.runs.result import return_text
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from flowrl.checks.check import CheckedGraph
    from flowrl.runs.run import Run

REFRESH_PER_S = 4
LINE_EVERY_S = 5.0
BAR_WIDTH = 20  # characters
STOPPING = "stopping after this round; Ctrl-C again stops at once"


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
