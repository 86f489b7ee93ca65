"""Teams that learn mpe2's simple_spread: flowrl beside DI-engine and BenchMARL, for the same number of env steps.

    python -m bench agents                                          (about half an hour)
    python -m bench agents [ALGORITHM…] [--steps N] [--seeds N]     a trial

Each library trains with the settings that come with it, in one thread, and without evaluations. The clock counts the
training; imports and compilers are off it. Afterwards each team plays the same 100 episodes. Its return is the mean of
the sum of all agents' rewards, as mpe2 gives them (`docs/algorithms.md` says what published returns are in this unit).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench._arguments import benchmark_parser, one_of
from bench.peers import BENCHMARL, DING, Contender, Row

STEPS, SEEDS = 48_000, 1
TIME_LIMIT_S = 3600.0
CONTENDERS: Mapping[str, tuple[Contender, ...]] = {
    "qmix": (
        Contender("flowrl", "qmix"),
        Contender("ding", "qmix", DING),
        Contender("benchmarl", "qmix", BENCHMARL),
    ),
    "mappo": (
        Contender("flowrl", "mappo"),
        Contender("ding", "mappo", DING),
        Contender("benchmarl", "mappo", BENCHMARL),
    ),
    "vdn": (Contender("flowrl", "vdn"), Contender("benchmarl", "vdn", BENCHMARL)),
}


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Train all teams, the contenders in turn; print and return the table."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument(
        "algorithms", nargs="*", type=one_of(CONTENDERS), default=CONTENDERS, metavar="ALGORITHM"
    )
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args(arguments)
    print("| algorithm | library | seconds | env steps/s | return |\n|---|---|---|---|---|")
    return {kind: measure(kind, options.steps, options.seeds) for kind in options.algorithms}


def measure(kind: str, env_steps: int, seeds: int) -> dict[str, dict[str, Any]]:
    """The median seconds and returns of each library, which are printed."""
    rows: dict[str, list[Row]] = {contender.library: [] for contender in CONTENDERS[kind]}
    for seed in range(seeds):
        for contender in CONTENDERS[kind]:
            row = contender.run("agents", [str(seed), str(env_steps)], TIME_LIMIT_S)
            if "failed" in row:
                print(f"  {contender.name}: {row['failed']}", file=sys.stderr)
            else:
                rows[contender.library].append(row)
    found = {library: medians(given) for library, given in rows.items() if given}
    for library, numbers in found.items():
        print(
            f"| {kind} | {library} | {numbers['wall_s']:.1f} | {numbers['per_s']:,.0f} | {numbers['return']:.0f} |",
            flush=True,
        )
    return found


def medians(rows: Sequence[Row]) -> dict[str, Any]:
    wall_s = statistics.median(row["wall_s"] for row in rows)
    per_s = statistics.median(row["env_steps"] / row["wall_s"] for row in rows)
    return {
        "wall_s": wall_s,
        "per_s": round(per_s, 1),
        "return": statistics.median(row["return"] for row in rows),
        "versions": rows[0]["versions"],
    }
