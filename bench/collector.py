"""The published experiment: the time of collecting with envs and a policy that only sleep.

    python -m bench collector            # forty minutes
    python -m bench collector --quick    # three: small and middle envs, one seed, the fastest peer
    python -m bench collector --size small --load 0.6 --contender flowrl_sync ding_sync
    python -m bench collector --published   # as published, many hours; interrupted, it goes on at the next call

The cells of the experiment are small, middle and big envs, with resets as long as published and five times
as long, without other load and (small, middle) with 60 % load on both cores. There are 8 envs, and a
collection has 80 samples or more. For each seed, all contenders run in turn. The results are compared with
the limits of `bench/peers/collect_limits.py` for the same durations.

All numbers are per returned sample, so steps that a library discards count as its loss. Sleeping takes no
processor time, so other work on the machine disturbs less than in other benchmarks, except under load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench._arguments import benchmark_parser
from bench._published_collector import (
    BASE,
    REPEATS,
    RESULTS,
    measure_missing,
    planned_runs,
    tables,
)
from bench._published_collector import COLLECTIONS as COLLECTIONS_PUBLISHED
from bench.peers import DING, ROOT, SB3, TIANSHOU, Contender, Row
from bench.peers.collect_limits import deterministic_limit_s, free_limit_s
from bench.peers.sleep_experiment import ENVS, SAMPLES

COLLECTIONS = {"small": 40, "middle": 24, "big": 8}
LIMITS = ["A", "H", "H+", "D", "D+"]
SEEDS = 2
TIMEOUT_S = 600.0
CELLS = [  # size, reset factor, load
    *((size, factor, 0.0) for size in COLLECTIONS for factor in (1.0, 5.0)),
    *((size, 1.0, 0.6) for size in ("small", "middle")),
]
CONTENDERS = (
    Contender("flowrl", "sync"),
    Contender("flowrl", "independent"),
    Contender("flowrl", "async"),
    Contender("sb3", "sync", SB3),
    Contender("tianshou", "sync", TIANSHOU),
    Contender("tianshou", "async", TIANSHOU),
    Contender("ding", "sync", DING),
    Contender("ding", "async", DING),
)
# ding_sync was the fastest peer in every cell.
FASTEST = ["flowrl_sync", "flowrl_async", "ding_sync"]
QUICK = ["--size", "small", "middle", "--seeds", "1", "--contender", *FASTEST]
# It ends with this process, also if that is killed: otherwise it would disturb what is measured afterwards.
BUSY_LOOP = """
import os, time
while os.getppid() == {parent}:
    until_s = time.perf_counter() + {busy}
    while time.perf_counter() < until_s:
        pass
    time.sleep({idle})
"""


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    options = parse_arguments(arguments)
    if options.published:
        return measure_published(options)
    contenders = [c for c in CONTENDERS if c.name in options.contender]
    cells = []
    for size, reset_factor, load in CELLS:
        if size in options.size and reset_factor in options.resets and load in options.load:
            collections = max(1, round(COLLECTIONS[size] * options.scale))
            cells.append(
                measure_cell(size, reset_factor, load, collections, options.seeds, contenders)
            )
            print(table(cells[-1:]), flush=True)
    print("\n" + table(cells))
    return {"cells": cells, "table": table(cells)}


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = benchmark_parser(__name__, __doc__)
    for option, choices, about in (
        ("--size", list(COLLECTIONS), "sizes of envs"),
        ("--resets", [1.0, 5.0], "duration of resets, as a multiple of the published one"),
        ("--load", [0.0, 0.6], "share of every core that other work takes"),
        ("--contender", [c.name for c in (BASE, *CONTENDERS)], "collectors to measure"),
    ):
        choice_type: Any = type(choices[0])
        parser.add_argument(
            option, nargs="+", type=choice_type, choices=choices, default=choices, help=about
        )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds in each cell")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="number of collections, as a multiple of the usual"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"as {' '.join(QUICK)}, unless other options say otherwise",
    )
    parser.add_argument(
        "--published",
        action="store_true",
        help="300 collections, three repeats, with and without load, the base manager too; each run is stored",
    )
    parser.add_argument(
        "--collections", type=int, default=COLLECTIONS_PUBLISHED, help="with --published"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="with --published")
    parser.add_argument(
        "--side",
        type=int,
        default=1,
        help="runs side by side, with --published: 8 big ones take a fifth of a core",
    )
    parser.add_argument("--file", type=Path, default=RESULTS, help="with --published")
    if "--quick" in arguments:
        arguments = [*QUICK, *arguments]
    return parser.parse_args(arguments)


def measure_published(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the runs of the published experiment that are missing, and print its tables."""
    contenders = [c for c in (BASE, *CONTENDERS) if c.name in options.contender]
    runs = planned_runs(
        contenders,
        options.size,
        options.resets,
        sorted(options.load, reverse=True),
        options.collections,
        options.repeats,
    )
    rows = measure_missing(list(runs), options.file, cpu_load, options.side)
    print("\n" + tables(rows))
    return {"runs": rows, "table": tables(rows)}


def measure_cell(
    size: str,
    reset_factor: float,
    load: float,
    collections: int,
    seeds: int,
    contenders: Sequence[Contender],
) -> Row:
    """Measure all contenders and limits in one cell, in milliseconds per sample."""
    n = collections * SAMPLES
    limits_s = {
        "A": [free_limit_s(size, reset_factor, seed, n, False) for seed in range(seeds)],
        "H": [free_limit_s(size, reset_factor, seed, n, True) for seed in range(seeds)],
        "D": [
            deterministic_limit_s(size, reset_factor, seed, collections) for seed in range(seeds)
        ],
    }
    rows_of: dict[str, list[Row]] = {title(contender): [] for contender in contenders}
    with cpu_load(load):
        overruns_s = measure_sleep_overruns_s(size)
        for seed in range(seeds):
            for contender in contenders:
                words = [size, f"{reset_factor:g}", str(seed), str(collections)]
                rows_of[title(contender)].append(contender.run("collect", words, TIMEOUT_S))
    limits_s["H+"] = [
        free_limit_s(size, reset_factor, seed, n, True, overruns_s) for seed in range(seeds)
    ]
    limits_s["D+"] = [
        deterministic_limit_s(size, reset_factor, seed, collections, overruns_s)
        for seed in range(seeds)
    ]
    per_sample_s = {name: [t / n for t in times_s] for name, times_s in limits_s.items()}
    results: dict[str, Any] = {name: {"ms": _mean_ms(t)} for name, t in per_sample_s.items()}
    results |= {name: _summary(rows, per_sample_s["A"]) for name, rows in rows_of.items()}
    return {
        "size": size,
        "reset_factor": reset_factor,
        "load": load,
        "collections": collections,
        "found": results,
    }


def title(contender: Contender) -> str:
    """The contender's name in results and tables."""
    return f"{contender.library} {contender.kind}"


def _summary(rows: Sequence[Row], limit_a_s: Sequence[float]) -> Row:
    """Summarise the runs of a contender in a cell; if one failed, return its row."""
    if failed := [row for row in rows if "failed" in row]:
        return failed[0]
    times_s = [row["wall_s"] / row["samples"] for row in rows]
    ratios = [t / a for t, a in zip(times_s, limit_a_s, strict=True)]
    return {
        "ms": _mean_ms(times_s),
        "ratio_to_a": statistics.fmean(ratios),
        "spread": statistics.pstdev(ratios),
        "cpu_ms": _mean_ms([row["cpu_s"] / row["samples"] for row in rows]),
    }


def measure_sleep_overruns_s(size: str) -> list[float]:
    """The sleep overruns in as many processes as the experiment has, which only sleep."""
    command = [sys.executable, "-m", "bench.peers.sleep_overrun", size]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(ENVS + 1)
    ]
    return [s for process in processes for s in json.loads(process.communicate()[0])]


@contextmanager
def cpu_load(share: float) -> Iterator[None]:
    """Keep this share of every core busy."""
    code = BUSY_LOOP.format(parent=os.getpid(), busy=0.02 * share, idle=0.02 * (1 - share))
    cores = len(os.sched_getaffinity(0)) if share else 0
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(cores)]
    try:
        time.sleep(0.2 if share else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def compare_with_targets(results: Mapping[str, Any]) -> list[str]:
    """Compare the results of a cell with the targets."""
    times_ms = {name: row["ms"] for name, row in results.items() if "ms" in row}
    own = [times_ms[name] for name in ("flowrl sync", "flowrl independent") if name in times_ms]
    peers = [ms for name, ms in times_ms.items() if name.endswith(" sync") and "flowrl" not in name]
    lines = []
    if "flowrl async" in times_ms:
        ms = times_ms["flowrl async"]
        lines.append(
            f"async {ms / times_ms['A']:.3f} of A (at most 1.05), {ms / times_ms['H+']:.3f} of H+"
        )
    if own and peers:
        lines.append(
            f"sync {min(own) / min(peers):.3f} of the best peer's (at most 0.9; "
            f"D+ {times_ms['D+'] / min(peers):.3f})"
        )
    return lines


def table(cells: Sequence[Row]) -> str:
    """Each contender's time per sample as a multiple of A, in Markdown."""
    names = [title(c) for c in CONTENDERS if any(title(c) in cell["found"] for cell in cells)]
    head = ["", "A, ms", *LIMITS[1:], *names, "compared with targets"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in cells:
        results = cell["found"]
        a_ms = results["A"]["ms"]
        load = f", {cell['load']:.0%} load" if cell["load"] else ""
        row = [f"{cell['size']} ×{cell['reset_factor']:g}{load}", f"{a_ms:.3f}"]
        row += [f"{results[limit]['ms'] / a_ms:.3f}" for limit in LIMITS[1:]]
        row += [_ratio_cell(results.get(name, {})) for name in names]
        lines.append(f"| {' | '.join([*row, '; '.join(compare_with_targets(results))])} |")
    return "\n".join(lines)


def _ratio_cell(row: Row) -> str:
    if "ratio_to_a" not in row:
        return row.get("failed", "")
    return f"{row['ratio_to_a']:.3f} ± {row['spread']:.3f}"


def _mean_ms(times_s: Sequence[float]) -> float:
    return 1000 * statistics.fmean(times_s)
