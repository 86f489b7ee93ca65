"""What a person sees while a run goes: a live table on a terminal, a line for each evaluation elsewhere."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from flowrl.context import Metrics, Record
from flowrl.run import Run, Watcher
from flowrl.runner import Runner

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

REFRESH_PER_S = 4


def watcher_for(quiet: bool) -> Watcher:
    """Whoever suits the place that output goes to."""
    if quiet:
        return Watcher()
    return LiveDisplay() if sys.stdout.isatty() else Lines()


class Lines(Watcher):
    """A plain line for each evaluation."""

    def begin(self, run: Run) -> None:
        print(
            f"{run.graph.name}: seed {run.seed}, {run.placement}, in {run.folder.path}", flush=True
        )

    def event(self, run: Run, runner: Runner, record: Record) -> None:
        if isinstance(record, Metrics) and runner.role == "evaluator":
            print(evaluation_line(run, runner, record), flush=True)


def evaluation_line(run: Run, runner: Runner, record: Metrics) -> str:
    """An evaluation in a line."""
    total = runner.ctx.clock.total
    mean = record.values.get("return_mean")
    shown = "" if mean is None else f"  return {mean:.1f}"
    return f"{run.wall_s:7.1f} s  {total.env_steps:>9,} env steps  {total.train_iters:>7,} train iters{shown}"


class LiveDisplay(Watcher):
    """A table that is drawn anew some times a second, from a thread of its own."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._last: tuple[float, int] = (0.0, 0)
        self._rate = 0.0

    def begin(self, run: Run) -> None:
        from rich.live import Live

        self._live = Live(
            get_renderable=lambda: self.table(run), refresh_per_second=REFRESH_PER_S, transient=True
        )
        self._live.start()

    def event(self, run: Run, runner: Runner, record: Record) -> None:
        if isinstance(record, Metrics) and runner.role == "evaluator" and self._live is not None:
            self._live.console.print(evaluation_line(run, runner, record), highlight=False)

    def end(self, run: Run) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def table(self, run: Run) -> Group:
        """The picture now."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        head = Text(self.headline(run), style="bold")
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("node")
        for name in ("firings", "firings/s", "ms each", "time"):
            table.add_column(name, justify="right")
        table.add_column("")
        wall_s = max(run.wall_s, 1e-9)
        for runner in run.engine.wired.all() if run.engine else ():
            fired, busy_s = runner.fired, runner.busy_s
            each_ms = f"{1e3 * busy_s / fired:.3f}" if fired else ""
            share = busy_s / wall_s
            table.add_row(
                runner.key,
                f"{fired:,}",
                f"{fired / wall_s:,.1f}",
                each_ms,
                f"{share:.0%}",
                "█" * round(20 * share),
            )
        return Group(head, table)

    def headline(self, run: Run) -> str:
        """Steps, rate, return, time left."""
        done = run.engine.done if run.engine else None
        if done is None:
            return run.graph.name
        returns = (
            ""
            if run.eval_return is None
            else f" · return {run.eval_return:.1f} (best {run.best_return or 0:.1f})"
        )
        left = time_left(run)
        return (
            f"{run.graph.name} · {done.env_steps:,} env steps · {self.rate(run, done.env_steps):,.0f}/s · "
            f"{done.train_iters:,} train iters{returns} · {clock_text(run.wall_s)}{left}"
        )

    def rate(self, run: Run, env_steps: int) -> float:
        """Env steps a second, over about the last second."""
        now = run.wall_s
        with self._lock:
            then, steps = self._last
            if now - then >= 1.0:
                self._rate = (env_steps - steps) / (now - then)
                self._last = (now, env_steps)
            elif not then:
                self._rate = env_steps / max(now, 1e-9)
        return self._rate


def time_left(run: Run) -> str:
    """How much longer, as far as the limits tell; a verdict may come earlier."""
    assert run.engine is not None
    done, limits = run.engine.done, run.limits
    parts = [
        done.env_steps / limits.steps if limits.steps else 0.0,
        done.train_iters / limits.train_iters if limits.train_iters else 0.0,
        run.wall_s / limits.time_s if limits.time_s else 0.0,
    ]
    part = max(parts)
    if part < 0.001:
        return ""
    return f" · {clock_text(run.wall_s * (1 - min(part, 1.0)) / part)} left at most"


def clock_text(seconds: float) -> str:
    """Seconds as a clock shows them."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
