"""What a person sees while a run goes: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from typing import TYPE_CHECKING

from flowrl.core.context import MetricsRecord, Record
from flowrl.runs.result_text import return_text
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

REFRESH_PER_S = 4
RATE_S = 5.0  # over which steps are counted: sites tell them some rounds at a time
BAR = 20  # characters of a whole


def watcher_for(quiet: bool) -> Watcher:
    """Whoever suits the place that output goes to."""
    if quiet:
        return Watcher()
    return LiveDisplay() if sys.stdout.isatty() else Lines()


STOPPING = "stopping after this train iteration; Ctrl-C again stops at once"


class Lines(Watcher):
    """A line at the beginning, and one for each evaluation."""

    def begin(self, run: Run) -> None:
        """Where it goes."""
        print(begin_line(run), flush=True)

    def note(self, run: Run, text: str) -> None:
        """A host, say, that has joined."""
        print(text, file=sys.stderr, flush=True)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        """An evaluation."""
        if isinstance(record, MetricsRecord) and source.role == "evaluator":
            print(evaluation_line(run, source, record), flush=True)

    def stopping(self, run: Run) -> None:
        """Past Python's buffers, which the signal may have come in the midst of."""
        os.write(2, f"{STOPPING}\n".encode())


class LiveDisplay(Watcher):
    """A line for each new best, and below them a table that is drawn anew some times a second."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._steps: deque[tuple[float, int]] = deque([(0.0, 0)])  # when there were how many
        self._best = -math.inf
        self._note = ""

    def begin(self, run: Run) -> None:
        """Draw, from a thread of its own."""
        from rich.live import Live

        self._live = Live(
            get_renderable=lambda: self.picture(run),
            refresh_per_second=REFRESH_PER_S,
            transient=True,
        )
        self._live.start()
        self._live.console.print(begin_line(run), highlight=False, style="dim", soft_wrap=True)

    def note(self, run: Run, text: str) -> None:
        """A host, say, that has joined: above the table."""
        if self._live is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self._live.console.print(text, highlight=False, soft_wrap=True)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        """An evaluation that is the best so far, above the table."""
        if (
            not isinstance(record, MetricsRecord)
            or source.role != "evaluator"
            or self._live is None
        ):
            return
        mean = record.values.get("return_mean", math.inf)
        if mean > self._best:
            self._best = mean
            line = evaluation_line(run, source, record)
            self._live.console.print(line, highlight=False, soft_wrap=True)

    def stopping(self, run: Run) -> None:
        """Drawn with the next picture."""
        self._note = STOPPING

    def end(self, run: Run) -> None:
        """Leave the lines, take the table away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def picture(self, run: Run) -> Group:
        """What is drawn now."""
        from rich.console import Group
        from rich.text import Text

        if run.executor is None and run.hosts is not None:
            return Group(Text(f"waiting for hosts at {run.hosts.address} …", style="bold"))
        if run.executor is None or run.executor.began_s is None:
            return Group(Text(f"making {len(run.graph.nodes)} nodes …", style="bold"))
        note = [Text(self._note, style="yellow")] if self._note else []
        return Group(Text(self.headline(run), style="bold"), node_table(run), *note)

    def headline(self, run: Run) -> str:
        """Steps and rate; return and time, that left too where a limit tells it."""
        done, times = run.counts, [clock_text(run.wall_s)]
        left_s = time_left_s(run)
        if left_s is not None:
            times.append(f"{clock_text(left_s)} left at most")
        if run.eval_return is not None:
            best = "" if run.best_return is None else f" (best {return_text(run.best_return)})"
            times.insert(0, f"return {return_text(run.eval_return)}{best}")
        rate = f"{self.rate(run, done.env_steps):,.0f}/s"
        steps = [f"{done.env_steps:,} env steps", rate, f"{done.train_iters:,} train iters"]
        return f"{' · '.join(steps)}\n{' · '.join(times)}"

    def rate(self, run: Run, env_steps: int) -> float:
        """Env steps a second, over the last seconds."""
        now, seen = run.firing_s, self._steps
        seen.append((now, env_steps))
        while len(seen) > 2 and now - seen[1][0] >= RATE_S:
            seen.popleft()
        then, steps = seen[0]
        return (env_steps - steps) / max(now - then, 1e-9)


def begin_line(run: Run) -> str:
    """What begins, and where it is written down."""
    where = run.folder.path if run.folder else ""
    return f"{run.graph.name}: seed {run.seed}, {run.placement}, in {where}"


def evaluation_line(run: Run, source: RecordSource, record: MetricsRecord) -> str:
    """An evaluation in a line."""
    total = source.total
    mean = record.values.get("return_mean")
    shown = "" if mean is None else f"  return {return_text(mean)}"
    steps = f"{total.env_steps:>9,} env steps  {total.train_iters:>7,} train iters"
    return f"{run.wall_s:7.1f} s  {steps}{shown}{_whose(run, source)}"


def _whose(run: Run, source: RecordSource) -> str:
    """Which evaluator it was, where there are several."""
    nodes = run.graph.nodes
    evaluators = sum(nodes[name].replicas for name in run.graph.nodes_of_role("evaluator"))
    return f"  by {source.key}" if evaluators > 1 else ""


def node_table(run: Run) -> Table:
    """Where the time goes."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("node")
    for name in ("firings", "ms each", "of the time"):
        table.add_column(name, justify="right")
    table.add_column("")
    firing_s = max(run.firing_s, 1e-9)
    for account in run.executor.instance_times() if run.executor else ():
        fired, share = account.fired, account.busy_s / firing_s
        each_ms = f"{1e3 * account.busy_s / fired:.2f}" if fired else ""
        table.add_row(account.key, f"{fired:,}", each_ms, f"{share:.0%}", "█" * round(BAR * share))
    return table


def time_left_s(run: Run) -> float | None:
    """How much longer, as far as the limits tell; a verdict may come earlier."""
    done, limits = run.counts, run.limits
    parts = [
        done.env_steps / limits.steps if limits.steps else 0.0,
        done.train_iters / limits.train_iters if limits.train_iters else 0.0,
        run.firing_s / limits.time_s if limits.time_s else 0.0,
    ]
    part = min(max(parts), 1.0)
    return run.firing_s * (1 - part) / part if part > 0.01 else None


def clock_text(seconds: float) -> str:
    """Seconds as a clock shows them."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
