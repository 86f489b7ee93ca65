"""A manual test of a mapped buffer that is larger than memory: it is filled, drawn from, and reopened.

    python -m tests.nodes.buffers.storage.large_mapped_buffer [GB] [FOLDER]

To test it with limited memory, run it in a control group, for example
`systemd-run --scope -p MemoryMax=2G python -m tests.nodes.buffers.storage.large_mapped_buffer 20`.
Every row that is drawn is compared with what was pushed. The folder is deleted at the end.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flowrl.core.batch import Batch
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage.mapped import MappedStorage

SIDE, PUSHED, SAMPLED = 84, 256, 256
ROW_BYTES = SIDE * SIDE + 8
MOST_BYTES = 1_000_000_000  # of anonymous memory


def rows(first: int) -> Batch:
    """Make rows whose images depend on their numbers."""
    number = np.arange(first, first + PUSHED)
    obs = np.broadcast_to((number % 251).astype(np.uint8)[:, None, None], (PUSHED, SIDE, SIDE))
    return Batch({"obs": obs.copy(), "number": number})


def own_bytes() -> int:
    """Return the anonymous memory of the process, which does not belong to files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("the system does not report the memory of this process")


def make_buffer(folder: Path, size: int, existing: str) -> NaiveReplayBuffer:
    storage = MappedStorage(path=str(folder), on_existing=existing, flush_every_rows=100_000)
    return NaiveReplayBuffer(size=size, batch_size=SAMPLED, storage=storage)


def draw_and_compare(buffer: NaiveReplayBuffer) -> None:
    """Draw a batch, and compare every byte."""
    batch = buffer.sample()
    assert (batch["obs"] == (batch["number"] % 251)[:, None, None]).all()


def measure(what: str, do: Callable[[], None], times: int, row_count: int) -> None:
    """Call `do` a number of times, and print the speed."""
    begun_s = time.perf_counter()
    for _ in range(times):
        do()
    taken_s = time.perf_counter() - begun_s
    speed = row_count * ROW_BYTES * times / taken_s / 1e6
    own = own_bytes()
    print(f"{what}: {row_count * times / taken_s:,.0f} rows/s, {speed:,.0f} MB/s, "
          f"own memory {own / 1e6:.0f} MB", flush=True)  # fmt: skip
    assert own < MOST_BYTES


def main() -> None:
    """Fill the buffer one and a half times, draw, close and reopen it, and draw again."""
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    parent = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
    folder, size = parent / "rows", int(gigabytes * 1e9) // ROW_BYTES
    buffer = make_buffer(folder, size, "error")
    pushed = iter(range(0, 10**12, PUSHED))
    push = lambda: buffer.push(rows(next(pushed)))  # noqa: E731
    try:
        measure("first round", push, size // PUSHED + 1, PUSHED)
        measure("draws", lambda: draw_and_compare(buffer), 200, SAMPLED)
        measure("second half round", push, size // PUSHED // 2, PUSHED)
        measure("draws", lambda: draw_and_compare(buffer), 200, SAMPLED)
        buffer.close()
        buffer = make_buffer(folder, size, "reuse")
        assert buffer.count == size
        measure("draws after reopening", lambda: draw_and_compare(buffer), 200, SAMPLED)
        buffer.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
