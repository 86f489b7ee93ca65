"""The published experiment: how long collecting takes where envs and the policy only sleep.

    python -m bench collector            # forty minutes
    python -m bench collector --quick    # three: small and middle envs, one seed, the fastest peer
    python -m bench collector --size small --load 0.6 --contender flowrl_sync ding_sync

Small, middle and big envs, resets as long as published and five times as long, without other load
and (small, middle) with both cores 60 % busy; 8 envs, 80 samples or more a collection. Contenders
take turns, seed by seed. Beside the libraries stand the limits of `bench/peers/limits.py`, from the
same draws. All numbers are per sample that was given: what a library steps and throws away is its
own loss. Sleeping takes no processor time, so other work on the machine disturbs less than in other
benchmarks; not so under load.
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
from typing import Any

from bench.peers import DING, ROOT, SB3, TIANSHOU, NotInstalled, Peer
from bench.peers.limits import even_s, ideal_s
from bench.peers.sleeping import ENVS, SAMPLES

COLLECTS = {"small": 40, "middle": 24, "big": 8}
LIMITS = ["A", "H", "H+", "D", "D+"]
SEEDS = 2
CELLS = [
    *((size, resets, 0.0) for size in COLLECTS for resets in (1.0, 5.0)),
    *((size, 1.0, 0.6) for size in ("small", "middle")),
]
CONTENDERS: Mapping[str, Peer | None] = {
    "flowrl sync": None,
    "flowrl independent": None,
    "flowrl async": None,
    "sb3 sync": SB3,
    "tianshou sync": TIANSHOU,
    "tianshou async": TIANSHOU,
    "ding sync": DING,
    "ding async": DING,
}
WHAT = "The published experiment: how long collecting takes where envs and the policy only sleep."
FASTEST = ["flowrl_sync", "flowrl_async", "ding_sync"]  # the fastest peer in every cell so far
QUICK = ["--size", "small", "middle", "--seeds", "1", "--contender", *FASTEST]
BURN = """
import time
while True:
    until_s = time.perf_counter() + {busy}
    while time.perf_counter() < until_s:
        pass
    time.sleep({idle})
"""

Row = Mapping[str, Any]


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure and print."""
    told = parsed(arguments)
    contenders = [name for name in CONTENDERS if name.replace(" ", "_") in told.contender]
    cells = []
    for size, resets, load in CELLS:
        if size in told.size and resets in told.resets and load in told.load:
            collects = max(1, round(COLLECTS[size] * told.scale))
            cells.append(_cell(size, resets, load, collects, told.seeds, contenders))
            print(table(cells[-1:]), flush=True)
    print("\n" + table(cells))
    return {"cells": cells, "table": table(cells)}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """What is to be measured."""
    names = [name.replace(" ", "_") for name in CONTENDERS]
    parser = argparse.ArgumentParser("python -m bench collector", description=WHAT)
    for option, choices, about in (
        ("--size", list(COLLECTS), "sizes of envs"),
        ("--resets", [1.0, 5.0], "how many times as long as published resets take"),
        ("--load", [0.0, 0.6], "share of every core that is busy with other work"),
        ("--contender", names, "who collects"),
    ):
        of: Any = type(choices[0])
        parser.add_argument(
            option, nargs="+", type=of, choices=choices, default=choices, help=about
        )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds in each cell")
    parser.add_argument("--scale", type=float, default=1.0, help="how many collections, of usual")
    parser.add_argument("--quick", action="store_true", help=f"as {' '.join(QUICK)}")
    if "--quick" in arguments:  # what is said beside it counts
        arguments = [*QUICK, *arguments]
    return parser.parse_args(arguments)


def _cell(
    size: str, resets: float, load: float, collects: int, seeds: int, contenders: Sequence[str]
) -> Row:
    """All contenders in one cell, in milliseconds a sample."""
    n, drawn = collects * SAMPLES, range(seeds)
    limits = {
        "A": [ideal_s(size, resets, seed, n, False) / n for seed in drawn],
        "H": [ideal_s(size, resets, seed, n, True) / n for seed in drawn],
        "D": [even_s(size, resets, seed, collects) / n for seed in drawn],
    }
    rows_of: dict[str, list[Row]] = {name: [] for name in contenders}
    with loaded(load):
        late = measured_late_s(size)
        limits["H+"] = [ideal_s(size, resets, seed, n, True, late) / n for seed in drawn]
        limits["D+"] = [even_s(size, resets, seed, collects, late) / n for seed in drawn]
        for seed in drawn:
            for name in contenders:
                rows_of[name].append(_run(name, size, resets, seed, collects))
    found: dict[str, Any] = {name: {"ms": _mean_ms(times)} for name, times in limits.items()}
    found |= {name: _told(rows, limits["A"]) for name, rows in rows_of.items()}
    return {"size": size, "resets": resets, "load": load, "collects": collects, "found": found}


def _told(rows: Sequence[Row], ideal: Sequence[float]) -> Row:
    """One contender's runs in a cell, or why there are none."""
    if failed := [row for row in rows if "failed" in row]:
        return failed[0]
    times = [row["wall_s"] / row["samples"] for row in rows]
    ratios = [t / a for t, a in zip(times, ideal, strict=True)]
    return {
        "ms": _mean_ms(times),
        "of_A": statistics.fmean(ratios),
        "spread": statistics.pstdev(ratios),
        "cpu_ms": _mean_ms([row["cpu_s"] / row["samples"] for row in rows]),
    }


def measured_late_s(size: str) -> list[float]:
    """How much too long as many processes slept as an experiment has, and did nothing else."""
    command = [sys.executable, "-m", "bench.peers.late", size]
    sleepers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(ENVS + 1)
    ]
    return [late for sleeper in sleepers for late in json.loads(sleeper.communicate()[0])]


def _run(name: str, size: str, resets: float, seed: int, collects: int) -> Row:
    library, mode = name.split()
    peer = CONTENDERS[name]
    try:
        python = str(peer.python()) if peer else sys.executable
        command = [python, "-m", f"bench.peers.{library}_collect", mode, size]
        done = subprocess.run(
            [*command, f"{resets:g}", str(seed), str(collects)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    except (NotInstalled, subprocess.TimeoutExpired) as error:
        return {"failed": str(error).replace(str(ROOT), ".")}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    row: Row = json.loads(lines[-1])
    return row


@contextmanager
def loaded(share: float) -> Iterator[None]:
    """Keep every core so busy meanwhile."""
    code = BURN.format(busy=0.02 * share, idle=0.02 * (1 - share))
    cores = len(os.sched_getaffinity(0)) if share else 0
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(cores)]
    try:
        time.sleep(0.2 if share else 0)
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def verdicts(found: Mapping[str, Any]) -> list[str]:
    """What was to be reached in a cell, and what was."""
    times = {name: row["ms"] for name, row in found.items() if "ms" in row}
    ours = [times[name] for name in ("flowrl sync", "flowrl independent") if name in times]
    peers = [ms for name, ms in times.items() if name.endswith(" sync") and "flowrl" not in name]
    told = []
    if "flowrl async" in times:
        share = times["flowrl async"]
        told.append(
            f"async {share / times['A']:.3f} of A (at most 1.05), {share / times['H+']:.3f} of H+"
        )
    if ours and peers:
        told.append(
            f"sync {min(ours) / min(peers):.3f} of the best peer's (at most 0.9; "
            f"D+ {times['D+'] / min(peers):.3f})"
        )
    return told


def table(cells: Sequence[Row]) -> str:
    """Each contender as a multiple of A, in Markdown."""
    names = [name for name in CONTENDERS if any(name in cell["found"] for cell in cells)]
    head = ["", "A, ms", *LIMITS[1:], *names, "reached"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in cells:
        found = cell["found"]
        a = found["A"]["ms"]
        load = f", {cell['load']:.0%} load" if cell["load"] else ""
        row = [f"{cell['size']} ×{cell['resets']:g}{load}", f"{a:.3f}"]
        row += [f"{found[limit]['ms'] / a:.3f}" for limit in LIMITS[1:]]
        row += [_shown(found.get(name, {})) for name in names]
        lines.append(f"| {' | '.join([*row, '; '.join(verdicts(found))])} |")
    return "\n".join(lines)


def _shown(row: Row) -> str:
    return f"{row['of_A']:.3f} ± {row['spread']:.3f}" if "of_A" in row else row.get("failed", "")


def _mean_ms(times_s: Sequence[float]) -> float:
    return 1000 * statistics.fmean(times_s)
