"""The response time of the command line: `flowrl --help`, and `flowrl check` of each bundled graph.

    python -m bench startup [REPEATS]

Each call is a new process, as when a person types it. The result is the median of the wall times.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from bench._arguments import benchmark_parser
from flowrl.graph.bundled import bundled_graphs

REPEATS = 10
HELP_TARGET_S, CHECK_TARGET_S = 0.3, 1.5


def response_time_s(words: Sequence[str], repeats: int) -> float:
    """The median time of `flowrl WORDS`, after one call that fills caches."""
    times_s = []
    for _ in range(repeats + 1):
        start_s = time.perf_counter()
        subprocess.run([sys.executable, "-m", "flowrl", *words], check=True, capture_output=True)
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[1:])


def main(arguments: list[str]) -> dict[str, float]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=REPEATS)
    repeats = parser.parse_args(arguments).repeats
    calls = [["--help"], *(["check", name] for name in bundled_graphs())]
    times_s = {" ".join(words): response_time_s(words, repeats) for words in calls}
    print(f"median of {repeats} processes")
    for call, time_s in times_s.items():
        target_s = HELP_TARGET_S if call == "--help" else CHECK_TARGET_S
        print(f"  flowrl {call:<28} {time_s:.3f} s (target: {target_s} or less)")
    return {f"{call} (s)": round(time_s, 4) for call, time_s in times_s.items()}
