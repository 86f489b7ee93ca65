"""What it costs to save a full replay buffer once a minute, and how long it takes to load it.

    python -m bench snapshots                          1,000,000 rows of float32[84] (about five minutes)
    python -m bench snapshots [--rows N] [--only NAME…]     a trial
    python -m bench snapshots --rows 29_000_000 --only flowrl-mapped --new-share 0.01 --pairs 0     20 GB on the disk

A row has obs, action, reward, next_obs, done: 692 bytes. Each contender saves the full buffer, and again after 6 % new
rows, which is a minute at 1,000 rows a second. All times end when the bytes are on the disk. `stall` is how long the
program that saves waits at a time; flowrl copies what is new in pieces, and writes it in another thread. `share` is the
time of a later save, with the work of that thread, as a share of a minute. `load` fills a new buffer; `bare read` reads
the same files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench._arguments import benchmark_parser
from bench.peers import SB3, TORCHRL, Peer, Row, run_program

CONTENDERS: Mapping[str, Peer | None] = {
    "flowrl": None,
    "flowrl-mapped": None,
    "sb3": SB3,
    "torchrl": TORCHRL,
}
ROWS, INTERVAL_S = 1_000_000, 60.0
NEW_SHARE = 0.06  # of the rows, between two saves
PAIRS = 5  # of a bare read and a load, of which the shortest count
TIMEOUT_S = 900.0  # for each million rows


def main(arguments: list[str]) -> dict[str, Row]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", nargs="*", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--new-share", type=float, default=NEW_SHARE, help="between two saves")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of a bare read and a load")
    options = parser.parse_args(arguments)
    results: dict[str, Row] = {}
    timeout_s = TIMEOUT_S * max(options.rows / ROWS, 1.0)
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            words = [name, str(options.rows), str(Path(folder) / "saves")]
            words += [str(options.new_share), str(options.pairs)]
            results[name] = run_program(CONTENDERS[name], "buffer_saves", words, timeout_s)
        print(f"{name}: {results[name]}", flush=True)
    print(table(results))
    return results


def table(results: Mapping[str, Row]) -> str:
    """Seconds and megabytes, in Markdown."""
    lines = [
        "\n| | first: stall, s | all, s | MB | later: stall, s | all, s | MB | share of a minute | load, s "
        "| bare read, s | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        if "failed" in row:
            lines.append(f"| {name} | failed: {row['failed']} | | | | | | | | | |")
            continue
        first, later = row["first"], row["later"]
        cells = [
            f"{first['stall_s']:.3f}",
            f"{first['s']:.2f}",
            f"{first['bytes'] / 1e6:,.0f}",
            f"{later['stall_s']:.3f}",
            f"{later['s']:.2f}",
            f"{later['bytes'] / 1e6:,.0f}",
            f"{later['s'] / INTERVAL_S:.1%}",
        ]
        if "load_s" in row:
            cells += [f"{row['load_s']:.2f}", f"{row['bare_s']:.2f}"]
            cells.append(f"{row['load_s'] / row['bare_s']:.2f}")
        else:
            cells += ["", "", ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
