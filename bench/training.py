"""The throughput of PPO, collecting and learning, compared with stable-baselines3's: env steps per second.

    python -m bench training [REPEATS] [--seconds S] [--load NAME ...]

Envs are CartPole-v1; each gives 128 steps for a training of 4 epochs. There are 8 envs with minibatches of 256 rows,
and 64 with minibatches of 2,048, which flowrl steps as one vector env. Both libraries have networks of two layers of
64. The load `images` is Pong in 8 envs with the usual preprocessing (four stacked frames of 84×84 pixels), minibatches
of 256 and the convolutional network of the DQN paper; there flowrl runs a second time, with `precision: bf16`. The
libraries take turns, in one thread. The median of all turns counts, of seconds and of CPU seconds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from bench._arguments import benchmark_parser
from bench.peers import SB3, SB3_ATARI, Contender
from bench.peers.training_protocol import LOADS

CONTENDERS = {
    "8x128": (Contender("flowrl", "serial"), Contender("sb3", "dummy", SB3)),
    "64x128": (Contender("flowrl", "vector"), Contender("sb3", "dummy", SB3)),
    "images": (
        Contender("flowrl", "serial"),
        Contender("flowrl", "bf16"),
        Contender("sb3", "dummy", SB3_ATARI),
    ),
}
NUMBERS = ("per_s", "per_cpu_s")
STARTING_S = 600.0  # a limit for imports and the first training


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--load", nargs="+", choices=list(LOADS), default=list(LOADS))
    options = parser.parse_args(arguments)
    print(
        "| load | library | env steps/s | per CPU second | ratio of CPU seconds |\n|---|---|---|---|---|"
    )
    return {load: measure(load, options.repeats, options.seconds) for load in options.load}


def measure(load: str, repeats: int, seconds: float) -> dict[str, dict[str, float]]:
    """The median rates of each contender, which are printed."""
    rows: dict[str, list[Any]] = {contender.name: [] for contender in CONTENDERS[load]}
    for _ in range(repeats):
        for contender in CONTENDERS[load]:
            row = contender.run("training", [load, str(seconds)], seconds + STARTING_S)
            if "failed" in row:
                print(f"  {contender.name}: {row['failed']}", file=sys.stderr)
            else:
                rows[contender.name].append(row)
    found = {
        name: {key: statistics.median(row[key] for row in given) for key in NUMBERS}
        for name, given in rows.items()
        if given
    }
    slowest = min((rates["per_cpu_s"] for rates in found.values()), default=0.0)
    for name, rates in found.items():
        ratio = rates["per_cpu_s"] / slowest
        print(
            f"| {load} | {name} | {rates['per_s']:,.0f} | {rates['per_cpu_s']:,.0f} | {ratio:.2f} |"
        )
    return found
