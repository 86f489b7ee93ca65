"""A process that forks children which push numbered rows into mapped buffers, and kills them.

    python -m tests.nodes.buffers.storage.pushing_process SIZE

For each line on its input (FOLDER SEED LINES MICROSECONDS) it forks a child that pushes rows and reports its
progress. The child is killed with SIGKILL this many microseconds after it has reported this many lines. The
process then prints the child's lines: `begun N`, before rows up to N are pushed; `flushed A B`, after the rows A to
B were flushed; and at last `killed`.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from flowrl.nodes.buffers.storage.deduplication import FrameDeduplicator
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.buffers.storage.ring import Ring


def rows(first: int, count: int) -> dict[str, np.ndarray]:
    """Make rows in which every byte depends on their numbers. Every third row has no successor."""
    numbers = np.arange(first, first + count)
    image = np.repeat(numbers[:, None] % 251, 3000, 1).astype(np.uint8)
    next_image = (image + np.uint8(1)) % np.uint8(251)
    next_image[numbers % 3 == 0] = 255
    return {"obs": image, "next_obs": next_image, "number": numbers}


def open_ring(folder: str, size: int) -> Ring:
    """Open or create a ring. Frames are deduplicated if the folder's name ends in `once`."""
    deduplicator = FrameDeduplicator({}) if folder.endswith("once") else None
    storage = MappedStorage(path=folder, on_existing="reuse", flush_every_rows=10**9)
    return Ring(size, deduplicator=deduplicator, storage=storage)


def push_for_ever(folder: str, size: int, seed: int, report: int) -> None:
    """Push and flush random numbers of rows, and write lines to the pipe `report`."""
    rng = np.random.default_rng(seed)
    ring = open_ring(folder, size)
    while True:
        count = int(rng.integers(1, 40))
        os.write(report, f"begun {ring.written + count}\n".encode())
        ring.push(rows(ring.written, count))
        if rng.random() < 0.3:
            ring.flush()
            os.write(report, f"flushed {ring.oldest} {ring.written}\n".encode())


def fork_and_kill(folder: str, size: int, seed: int, lines: int, us: int) -> str:
    """Fork a child, kill it, and return the lines that it reported."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        push_for_ever(folder, size, seed, write_end)
    os.close(write_end)
    with open(read_end) as pipe:
        reported = [pipe.readline() for _ in range(lines)]
        deadline = time.perf_counter() + us / 1e6
        while time.perf_counter() < deadline:  # not a sleep, which would end only at some moments
            pass
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        return "".join([*reported, *pipe.readlines()])


def main() -> None:
    """Fork and kill one child for each line."""
    size = int(sys.argv[1])
    for line in sys.stdin:
        folder, *numbers = line.split()
        print(f"{fork_and_kill(folder, size, *map(int, numbers))}killed", flush=True)


if __name__ == "__main__":
    main()
