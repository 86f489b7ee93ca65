"""Replay buffers compared with those of other libraries: rows per second, pushed by 64 and sampled by 256.

    python -m bench buffer                                   all cells (about twenty minutes)
    python -m bench buffer [--only NAME…] [--cell vector:prioritised:100000 …]     a trial

An observation is float32[84] or uint8[4,84,84]; a row has obs, action, reward, next_obs, done.
Libraries take turns within a cell. A cell is skipped if its rows do not fit twice into free memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench._arguments import benchmark_parser
from bench.peers import CPPRB, DING, REVERB, SB3, TIANSHOU, TORCHRL, Peer, Row, run_program
from flowrl.machine.resource_limits import free_memory_bytes

PEERS: Mapping[str, Peer | None] = {
    "numpy": None,
    "flowrl": None,
    "cpprb": CPPRB,
    "sb3": SB3,
    "tianshou": TIANSHOU,
    "tianshou-single": TIANSHOU,
    "torchrl": TORCHRL,
    "ding": DING,
    "reverb": REVERB,
}
CELLS = [
    (obs, sampling, rows)
    for obs in ("vector", "image")
    for sampling in ("uniform", "prioritised")
    for rows in (100_000, 1_000_000)
]
ROW_BYTES = {"vector": 84 * 4 * 2, "image": 4 * 84 * 84 * 2}
TIMEOUT_S = 240.0
UNIFORM_ONLY = ("numpy", "sb3")


def main(arguments: list[str]) -> dict[str, dict[str, Row]]:
    """Measure, and print the results."""
    parser = benchmark_parser(__name__, __doc__)
    parser.add_argument("--only", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--cell", nargs="*", default=[":".join(map(str, c)) for c in CELLS])
    options = parser.parse_args(arguments)
    results: dict[str, dict[str, Row]] = {}
    for cell in options.cell:
        obs, sampling, rows = cell.split(":")
        free = free_memory_bytes()
        if free is not None and 2 * ROW_BYTES[obs] * int(rows) > free:
            print(f"{cell}: skipped, it does not fit twice into {free / 1e9:.0f} GB", flush=True)
            continue
        names = [n for n in options.only if sampling == "uniform" or n not in UNIFORM_ONLY]
        results[cell] = {
            name: run_program(PEERS[name], "buffers", [name, obs, sampling, rows], TIMEOUT_S)
            for name in names
        }
        print(table(cell, results[cell]), flush=True)
    return results


def table(cell: str, rows: Mapping[str, Row]) -> str:
    """Thousands of rows per second, in Markdown."""
    lines = [
        f"\n| {cell} | push, k/s | sample, k/s | sample and update, k/s | rows filled |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"| {name} | failed: {row['failed']} | | | |")
            continue
        rates = [f"{row[k] / 1e3:,.0f}" if k in row else "" for k in ("push", "sample", "update")]
        lines.append(f"| {name} | {' | '.join(rates)} | {row['filled']:,} |")
    return "\n".join(lines)
