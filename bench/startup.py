"""How soon the command line answers: `flowrl --help`, and `flowrl check` of the bundled graphs.

    python -m bench startup [REPEATS]

Processes of their own, as a person starts them; the median of their wall times.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from flowrl.graph.bundled import bundled_graphs

REPEATS = 10
HELP_S, CHECK_S = 0.3, 1.5  # to reach


def answer_s(words: Sequence[str], repeats: int) -> float:
    """The median time of `flowrl WORDS`; once before, for caches."""
    taken = []
    for _ in range(repeats + 1):
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, "-m", "flowrl", *words], check=True, capture_output=True)
        taken.append(time.perf_counter() - begun_s)
    return statistics.median(taken[1:])


def main(arguments: list[str]) -> dict[str, float]:
    """Measure and print."""
    repeats = int(arguments[0]) if arguments else REPEATS
    found = {"--help": answer_s(["--help"], repeats)}
    found |= {f"check {name}": answer_s(["check", name], repeats) for name in bundled_graphs()}
    print(f"median of {repeats} processes")
    for words, taken_s in found.items():
        target_s = HELP_S if words == "--help" else CHECK_S
        print(f"  flowrl {words:<28} {taken_s:.3f} s (target: {target_s} or less)")
    return {f"{words} (s)": round(taken_s, 4) for words, taken_s in found.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
