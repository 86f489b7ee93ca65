"""What a person sees of runs with several seeds: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from flowrl.core.wording import clock_text
from flowrl.runs.result import return_text

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from flowrl.runs.seeds import SeedRun, SeedRuns

REFRESH_PER_S = 4
STOPPING = "stopping all seeds after their train iterations; Ctrl-C again stops them at once"


class SeedDisplay:
    """Is notified of what happens, and shows nothing."""

    def begin(self, runs: SeedRuns) -> None:
        """The folder exists, and no run has begun."""

    def evaluated(self, runs: SeedRuns, run: SeedRun) -> None:
        """The run of a seed has reported an evaluation."""

    def ended(self, runs: SeedRuns, run: SeedRun) -> None:
        """The run of a seed has ended; `run.result` says how."""

    def stopping(self, runs: SeedRuns) -> None:
        """All runs were asked to stop."""

    def end(self, runs: SeedRuns) -> None:
        """All runs have ended."""


def seed_display_for(quiet: bool) -> SeedDisplay:
    """The display that suits standard output."""
    if quiet:
        return SeedDisplay()
    return LiveSeedDisplay() if sys.stdout.isatty() else LineSeedDisplay()


class LineSeedDisplay(SeedDisplay):
    """Prints a line for each evaluation, and for the end of each run."""

    def begin(self, runs: SeedRuns) -> None:
        print(begin_line(runs), flush=True)

    def evaluated(self, runs: SeedRuns, run: SeedRun) -> None:
        print(f"{runs.wall_s:7.1f} s  {progress_text(run)}", flush=True)

    def ended(self, runs: SeedRuns, run: SeedRun) -> None:
        print(f"{runs.wall_s:7.1f} s  {ending_text(run)}", flush=True)

    def stopping(self, runs: SeedRuns) -> None:
        print(STOPPING, file=sys.stderr, flush=True)


class LiveSeedDisplay(SeedDisplay):
    """Prints a line for the end of each run, above a table that is redrawn some times a second."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def begin(self, runs: SeedRuns) -> None:
        from rich.live import Live

        self._live = Live(
            get_renderable=lambda: seed_table(runs),
            refresh_per_second=REFRESH_PER_S,
            transient=True,
        )
        self._live.start()  # a thread of its own draws
        self._print(begin_line(runs))

    def ended(self, runs: SeedRuns, run: SeedRun) -> None:
        self._print(ending_text(run))

    def stopping(self, runs: SeedRuns) -> None:
        self._print(STOPPING)

    def end(self, runs: SeedRuns) -> None:
        if self._live is not None:
            self._live.stop()

    def _print(self, line: str) -> None:
        assert self._live is not None
        self._live.console.print(line, highlight=False, soft_wrap=True)


def begin_line(runs: SeedRuns) -> str:
    """The graph, the seeds, the placement and the folder of runs that begin."""
    seeds = ", ".join(str(run.seed) for run in runs.runs)
    return (
        f"{runs.graph.name}: seeds {seeds}, {runs.placement}, {runs.at_once} at once, "
        f"in {runs.folder}"
    )


def progress_text(run: SeedRun) -> str:
    found = run.progress
    if found is None:
        return f"seed {run.seed}: starting"
    shown = "" if found.eval_return is None else f"  return {return_text(found.eval_return)}"
    counts = f"{found.env_steps:>9,} env steps  {found.train_iters:>7,} train iters"
    return f"seed {run.seed}:{counts}{shown}"


def ending_text(run: SeedRun) -> str:
    assert run.result is not None
    result = run.result
    shown = "" if result.eval_return is None else f", return {return_text(result.eval_return)}"
    where = f"; see {result.run_dir}" if result.status == "failed" and result.run_dir else ""
    return f"seed {run.seed}: {result.status}: {result.why}{shown}{where}"


def seed_table(runs: SeedRuns) -> Table:
    """A row for each seed: how it ended or what it has done so far, and since when."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("seed")
    table.add_column("status")
    for name in ("env steps", "train iters", "return", "time"):
        table.add_column(name, justify="right")
    for run in runs.runs:
        table.add_row(*seed_cells(run), style="" if run.is_active else "dim")
    return table


def seed_cells(run: SeedRun) -> list[str]:
    found = run.result or run.progress
    if run.begun_s is None or found is None:
        status = "waiting" if run.begun_s is None else "starting"
        return [str(run.seed), run.result.status if run.result else status, "", "", "", ""]
    value = found.eval_return
    lasted_s = run.result.wall_s if run.result else time.perf_counter() - run.begun_s
    return [
        str(run.seed),
        run.result.status if run.result else "running",
        f"{found.env_steps:,}",
        f"{found.train_iters:,}",
        "" if value is None else return_text(value),
        clock_text(lasted_s),
    ]
