"""Replay buffers beside those of other libraries: rows a second, pushed by 64 and sampled by 256.

    python -m bench buffer                                   all cells (about twenty minutes)
    python -m bench buffer [--only NAME…] [--cell vec:prioritised:100000 …]     a trial

An observation is float32[84] or uint8[4,84,84]; a row has obs, action, reward, next_obs, done.
Libraries take turns within a cell. Images are only measured where they fit twice into free memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.peers import CPPRB, DING, REVERB, SB3, TIANSHOU, TORCHRL, NotInstalled, Peer
from flowrl.nodes.buffers.storage.limits import available_bytes

ROOT = Path(__file__).resolve().parents[1]
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
    (what, how, rows)
    for what in ("vec", "image")
    for how in ("uniform", "prioritised")
    for rows in (100_000, 1_000_000)
]
ROW_BYTES = {"vec": 84 * 4 * 2, "image": 4 * 84 * 84 * 2}
LIMIT_S = 240.0
UNIFORM_ONLY = ("numpy", "sb3")

Row = dict[str, Any]


def main(words: list[str]) -> dict[str, dict[str, Row]]:
    """All cells, or those that are asked for."""
    parser = argparse.ArgumentParser(prog="bench buffer")
    parser.add_argument("--only", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--cell", nargs="*", default=[":".join(map(str, c)) for c in CELLS])
    asked = parser.parse_args(words)
    found: dict[str, dict[str, Row]] = {}
    for cell in asked.cell:
        what, how, rows = cell.split(":")
        free = available_bytes()
        if free is not None and 2 * ROW_BYTES[what] * int(rows) > free:
            print(f"{cell}: left out, it does not fit twice into {free / 1e9:.0f} GB", flush=True)
            continue
        names = [n for n in asked.only if how == "uniform" or n not in UNIFORM_ONLY]
        found[cell] = {name: measure(name, what, how, rows) for name in names}
        print(table(cell, found[cell]), flush=True)
    return found


def measure(name: str, what: str, how: str, rows: str) -> Row:
    """One cell of one library, by its own Python."""
    peer = PEERS[name]
    try:
        python = sys.executable if peer is None else str(peer.python())
    except NotInstalled as failed:
        return {"failed": str(failed)}
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    call = [python, "-m", "bench.peers.buffers", name, what, how, rows]
    try:
        ran = subprocess.run(
            call, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **one}
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {LIMIT_S:.0f} s"}
    if ran.returncode:
        return {"failed": (ran.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]}
    row: Row = json.loads(ran.stdout.strip().splitlines()[-1])
    return row


def table(cell: str, rows: Mapping[str, Row]) -> str:
    """Thousands of rows a second, in Markdown."""
    lines = [
        f"\n| {cell} | push k/s | sample k/s | with update k/s | filled |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "failed" in row:
            lines.append(f"| {name} | failed: {row['failed']} | | | |")
            continue
        rates = [f"{row[k] / 1e3:,.0f}" if k in row else "" for k in ("push", "sample", "update")]
        lines.append(f"| {name} | {' | '.join(rates)} | {row['filled']:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
