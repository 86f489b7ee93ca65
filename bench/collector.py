"""The published experiment: how long collecting takes where envs and the policy only sleep.

    python -m bench collector [SEEDS [SCALE [SIZE [RESETS [LOAD [CONTENDER ...]]]]]]

Small, middle and big envs, resets as long as published and five times as long, without other load
and (small, middle) with both cores 60 % busy; 8 envs, 80 samples or more a collection. Beside the
libraries stand the limits of `bench/peers/limits.py`, from the same draws. All numbers are per sample that
was given: what a library steps and throws away is its own loss. Sleeping takes no processor time, so
other work on the machine disturbs less than in other benchmarks; not so with LOAD.
"""

from __future__ import annotations

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
from bench.peers.limits import ideal_s, together_s
from bench.peers.sleeping import SAMPLES

COLLECTS = {"small": 40, "middle": 24, "big": 8}
SEEDS = 2
CELLS = [
    *((size, resets, 0.0) for size in COLLECTS for resets in (1.0, 5.0)),
    *((size, 1.0, 0.6) for size in ("small", "middle")),
]
CONTENDERS: Mapping[str, Peer | None] = {
    "flowrl sync": None,
    "flowrl halves": None,
    "flowrl async": None,
    "sb3 sync": SB3,
    "tianshou sync": TIANSHOU,
    "tianshou async": TIANSHOU,
    "ding sync": DING,
    "ding async": DING,
}
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
    words = list(arguments)
    seeds = int(words[0]) if words else SEEDS
    scale = float(words[1]) if len(words) > 1 else 1.0
    wanted = [
        lambda c, k=k, w=w: w in ("all", f"{c[k]:g}" if k else c[0])
        for k, w in enumerate(words[2:5])
    ]
    contenders = [c for c in CONTENDERS if c.replace(" ", "_") in words[5:] or not words[5:]]
    cells = []
    for cell in (c for c in CELLS if all(fits(c) for fits in wanted)):
        cells.append(_cell(*cell, max(1, round(COLLECTS[cell[0]] * scale)), seeds, contenders))
        print(table(cells[-1:]), flush=True)
    print("\n" + table(cells))
    return {"cells": cells, "table": table(cells)}


def _cell(
    size: str, resets: float, load: float, collects: int, seeds: int, contenders: Sequence[str]
) -> Row:
    """All contenders in one cell, in milliseconds a sample."""
    n = collects * SAMPLES
    limits = {
        "A": [ideal_s(size, resets, seed, n, False) / n for seed in range(seeds)],
        "H": [ideal_s(size, resets, seed, n, True) / n for seed in range(seeds)],
        "L": [together_s(size, resets, seed, n) / n for seed in range(seeds)],
    }
    found: dict[str, Any] = {name: {"ms": _mean_ms(times)} for name, times in limits.items()}
    with loaded(load):
        for name in contenders:
            rows = [_run(name, size, resets, seed, collects) for seed in range(seeds)]
            failed = [row["failed"] for row in rows if "failed" in row]
            if failed:
                found[name] = {"failed": failed[0]}
                continue
            times = [row["wall_s"] / row["samples"] for row in rows]
            ratios = [t / a for t, a in zip(times, limits["A"], strict=True)]
            found[name] = {
                "ms": _mean_ms(times),
                "of_A": statistics.fmean(ratios),
                "spread": statistics.pstdev(ratios),
                "cpu_ms": _mean_ms([row["cpu_s"] / row["samples"] for row in rows]),
            }
    return {"size": size, "resets": resets, "load": load, "collects": collects, "found": found}


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
    ours = [times[name] for name in ("flowrl sync", "flowrl halves") if name in times]
    peers = [ms for name, ms in times.items() if name.endswith(" sync") and "flowrl" not in name]
    told = []
    if "flowrl async" in times:
        told.append(f"async {times['flowrl async'] / times['A']:.3f} of A (at most 1.05)")
    if ours and peers:
        told.append(f"sync {min(ours) / min(peers):.3f} of the best peer's (at most 0.9)")
    return told


def table(cells: Sequence[Row]) -> str:
    """Each contender as a multiple of A, in Markdown."""
    names = [name for name in CONTENDERS if any(name in cell["found"] for cell in cells)]
    head = ["", "A, ms", "H", "L", *names, "reached"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for cell in cells:
        found = cell["found"]
        a = found["A"]["ms"]
        load = f", {cell['load']:.0%} load" if cell["load"] else ""
        row = [f"{cell['size']} ×{cell['resets']:g}{load}", f"{a:.3f}"]
        row += [f"{found[limit]['ms'] / a:.3f}" for limit in ("H", "L")]
        row += [_shown(found.get(name, {})) for name in names]
        lines.append(f"| {' | '.join([*row, '; '.join(verdicts(found))])} |")
    return "\n".join(lines)


def _shown(row: Row) -> str:
    return f"{row['of_A']:.3f} ± {row['spread']:.3f}" if "of_A" in row else row.get("failed", "")


def _mean_ms(times_s: Sequence[float]) -> float:
    return 1000 * statistics.fmean(times_s)
