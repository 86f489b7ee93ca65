"""The collector experiment as it was published: 300 collections, three repeats, all cells, and the base manager.

It takes many hours, so each run is written to a file as soon as it is over, and an interrupted experiment goes on
where it was. Runs sleep most of the time, so that several can run side by side (`--side`); each row says how many did,
and how many CPU seconds it took. The tables have the published form: seconds of all collections, mean and deviation
over the repeats.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from bench.peers import Contender, Row

COLLECTIONS, REPEATS = 300, 3
SIZES, RESET_FACTORS, LOADS = ("small", "middle", "big"), (1.0, 5.0), (0.6, 0.0)
BASE = Contender("flowrl", "base")
TIMEOUT_S = 6 * 3600.0  # of one run
RESULTS = Path(__file__).parent / "results" / "collector_published.jsonl"


class PublishedRun(NamedTuple):
    """One run of a contender in a cell."""

    size: str
    reset_factor: float
    load: float
    seed: int
    contender: Contender
    collections: int

    @property
    def key(self) -> dict[str, Any]:
        """What identifies the run in the file."""
        return {**self._asdict(), "contender": self.contender.name}

    def measure(self) -> Row:
        words = [self.size, f"{self.reset_factor:g}", str(self.seed), str(self.collections)]
        return self.contender.run("collect", words, TIMEOUT_S)


def planned_runs(
    contenders: Sequence[Contender],
    sizes: Sequence[str] = SIZES,
    resets: Sequence[float] = RESET_FACTORS,
    loads: Sequence[float] = LOADS,
    collections: int = COLLECTIONS,
    repeats: int = REPEATS,
) -> Iterator[PublishedRun]:
    """All runs. The contenders of a cell run in turn, so that a slow hour of the machine hits all of them."""
    for load in loads:
        for size in sizes:
            for reset_factor in resets:
                for seed in range(repeats):
                    for contender in contenders:
                        yield PublishedRun(size, reset_factor, load, seed, contender, collections)


def measure_missing(
    runs: Sequence[PublishedRun],
    path: Path,
    cpu_load: Callable[[float], AbstractContextManager[None]],
    side: int = 1,
) -> list[dict[str, Any]]:
    """Measure the runs that the file does not have, some side by side, and append them; return all."""
    rows = read_rows(path)
    known = [{name: row[name] for name in PublishedRun._fields} for row in rows]
    missing = [run for run in runs if run.key not in known]
    print(f"{len(runs)} runs, of which {path} has {len(runs) - len(missing)}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    is_writing = Lock()

    def measure(run: PublishedRun) -> dict[str, Any]:
        row = {**run.key, "side": side, **run.measure()}
        with is_writing:
            if "failed" not in row:  # a failed run is tried again next time
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
        return row

    for load, same in itertools.groupby(missing, key=lambda run: run.load):
        # The base manager steps one env at a time, and takes the longest: it must not be what the others wait for.
        longest_first = sorted(same, key=lambda run: run.contender != BASE)
        pool = ThreadPoolExecutor(side)
        try:
            with cpu_load(load):
                rows += pool.map(measure, longest_first)
        finally:  # Ctrl-C ends the runs that are measured, and no others begin
            pool.shutdown(cancel_futures=True)
    wanted = [run.key for run in runs]
    return [row for row in rows if {n: row[n] for n in PublishedRun._fields} in wanted]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of the file. An incomplete last line, of a run that was interrupted, is cut off."""
    if not path.is_file():
        return []
    whole, _, rest = path.read_text(encoding="utf-8").rpartition("\n")
    if rest:
        path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """A table for each multiple of resets and load, in Markdown: seconds as mean + deviation, as published."""
    shown = []
    cells = sorted({(row["load"], row["reset_factor"]) for row in rows}, reverse=True)
    for load, reset_factor in cells:
        own = [r for r in rows if (r["load"], r["reset_factor"]) == (load, reset_factor)]
        names = list(dict.fromkeys(row["contender"] for row in own))
        lines = [f"resets ×{reset_factor:g}, {load:.0%} load", ""]
        lines += [f"| s | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
        for size in dict.fromkeys(row["size"] for row in own):
            found = [
                _seconds([r for r in own if (r["size"], r["contender"]) == (size, n)])
                for n in names
            ]
            lines.append(f"| {size} | {' | '.join(found)} |")
        shown.append("\n".join(lines))
    return "\n\n".join(shown)


def _seconds(rows: Sequence[Row]) -> str:
    """The time of all collections of 80 samples, as mean + deviation over the repeats."""
    times_s = [row["wall_s"] for row in rows if "failed" not in row]
    if not times_s:
        return rows[0]["failed"] if rows else ""
    return f"{statistics.fmean(times_s):.2f}+{statistics.pstdev(times_s):.2f}"
