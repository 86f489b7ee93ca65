"""The wall time of learning from data, beside imitation (BC, GAIL) and d3rlpy (CQL, IQL, TD3+BC).

    python -m bench offline [REPEATS] [--only TASK ...] [--share S]

All learn from the same rows, with layers of the same sizes, batches of the same size and as many updates, in one
thread. An update is a batch; of GAIL it is a round of 1,024 env steps, PPO's training on them and four steps of the
discriminator. Other settings are each library's own. The libraries take turns; the median of all turns counts.
`--share 0.1` does a tenth of the updates, for a quick look.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from bench._arguments import benchmark_parser
from bench.peers import D3RLPY, IMITATION, Contender, Peer
from bench.peers.offline_protocol import TASKS

PEERS: dict[str, Peer] = {
    "bc": IMITATION,
    "gail": IMITATION,
    "cql": D3RLPY,
    "iql": D3RLPY,
    "td3bc": D3RLPY,
}
NUMBERS = ("seconds", "cpu_s")
LONGEST_S = 1800.0  # of one turn, with imports


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("repeats", nargs="?", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--share", type=float, default=1.0, help="of the updates of each task")
    options = parser.parse_args(arguments)
    print(
        "| | updates | library | seconds | CPU s | of the peer's seconds |\n|---|---|---|---|---|---|"
    )
    return {
        task: measure(task, options.repeats, max(1, round(TASKS[task].updates * options.share)))
        for task in options.only
    }


def measure(task: str, repeats: int, updates: int) -> dict[str, dict[str, float]]:
    """The median times of each library, which are printed."""
    peer = PEERS[task]
    contenders = (Contender("flowrl", task), Contender(peer.name, task, peer))
    rows: dict[str, list[Any]] = {contender.library: [] for contender in contenders}
    for _ in range(repeats):
        for contender in contenders:
            row = contender.run("offline", [str(updates)], LONGEST_S)
            if "failed" in row:
                print(f"  {contender.name}: {row['failed']}", file=sys.stderr)
            else:
                rows[contender.library].append(row)
    found = {
        library: {key: statistics.median(row[key] for row in given) for key in NUMBERS}
        for library, given in rows.items()
        if given
    }
    whole = found.get(peer.name, {}).get("seconds")
    for library, times in found.items():
        ratio = "" if whole is None else f"{times['seconds'] / whole:.2f}"
        print(
            f"| {task} | {updates:,} | {library} | {times['seconds']:.2f} | {times['cpu_s']:.2f} | {ratio} |",
            flush=True,
        )
    return found
