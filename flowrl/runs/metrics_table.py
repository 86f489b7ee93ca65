"""The newest metrics of all nodes as a table in the terminal, every few seconds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flowrl.core.errors import UsageError
from flowrl.core.records import MetricsRecord, Record
from flowrl.core.wording import count_text
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource

if TYPE_CHECKING:
    from flowrl.runs.run import Run

WIDTH = 110


class MetricsTable(Watcher):
    """Prints the newest metrics of each node, at most every `every_s` seconds, and once more at the end."""

    def __init__(self, every_s: float = 10.0) -> None:
        if not every_s >= 0:
            raise UsageError(f"MetricsTable: every_s is {every_s!r}; expected seconds, such as 10")
        self._every_s = every_s
        self._printed_s = 0.0
        self._newest: dict[str, Mapping[str, float]] = {}
        self._is_printed = True

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if isinstance(record, MetricsRecord):
            self._newest[source.key] = record.values
            self._is_printed = False
            if run.wall_s - self._printed_s >= self._every_s:
                self._print(run)

    def end(self, run: Run) -> None:
        if not self._is_printed:
            self._print(run)

    def _print(self, run: Run) -> None:
        self._printed_s, self._is_printed = run.wall_s, True
        done = run.counts
        print(
            f"\n{run.wall_s:.1f} s, {count_text(done.env_steps, 'env step')}, "
            f"{count_text(done.train_iters, 'train iteration')}\n{metrics_text(self._newest)}\n",
            flush=True,
        )


def metrics_text(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """The metrics of each node, in cells of equal width, as many in a line as fit."""
    cells = {
        node: [f"{name} {value:.6g}" for name, value in values.items()]
        for node, values in metrics.items()
    }
    width = max((len(cell) for of_node in cells.values() for cell in of_node), default=0)
    margin = max(map(len, cells), default=0) + 2
    in_line = max((WIDTH - margin) // (width + 2), 1)
    lines = []
    for node, of_node in sorted(cells.items()):
        rows = [of_node[k : k + in_line] for k in range(0, len(of_node), in_line)]
        text = "\n".join("  ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)
        lines.append(node.ljust(margin) + textwrap.indent(text, " " * margin)[margin:])
    return "\n".join(lines)
