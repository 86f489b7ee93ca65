"""A process that pushes numbered rows into a mapped buffer until it is killed.

    python -m tests.nodes.buffers.storage.pushing_process FOLDER SIZE

For each line that it reads (a seed, a number of lines, and microseconds) it forks a child that pushes, and kills
that with SIGKILL, so long after it has told so many lines. It prints what the child told: `begun N`, before
rows up to N are pushed; `flushed A B`, when the rows A to B were; and `killed`.
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
    """Rows that say which they are, every byte of them; each third goes on in the next."""
    numbers = np.arange(first, first + count)
    image = np.repeat(numbers[:, None] % 251, 3000, 1).astype(np.uint8)
    after = (image + np.uint8(1)) % np.uint8(251)
    after[numbers % 3 == 0] = 255
    return {"obs": image, "next_obs": after, "number": numbers}


def opened(folder: str, size: int) -> Ring:
    """Gone on with, or new; in every second folder by name observations are stored once."""
    deduplicator = FrameDeduplicator({}) if folder.endswith("once") else None
    storage = MappedStorage(path=folder, on_existing="reuse", flush_every_rows=10**9)
    return Ring(size, deduplicator=deduplicator, storage=storage)


def push(folder: str, size: int, seed: int, told: int) -> None:
    """Push and flush for ever."""
    rng = np.random.default_rng(seed)
    ring = opened(folder, size)
    while True:
        count = int(rng.integers(1, 40))
        os.write(told, f"begun {ring.written + count}\n".encode())
        ring.push(rows(ring.written, count))
        if rng.random() < 0.3:
            ring.flush()
            os.write(told, f"flushed {ring.written - ring.row_count} {ring.written}\n".encode())


def killed(folder: str, size: int, seed: int, lines: int, us: int) -> str:
    """What a child told that was killed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        push(folder, size, seed, theirs)
    os.close(theirs)
    with open(ours) as pipe:
        told = [pipe.readline() for _ in range(lines)]
        dies = time.perf_counter() + us / 1e6
        while time.perf_counter() < dies:  # the moment is to be any, and a sleep ends at some
            pass
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        return "".join([*told, *pipe.readlines()])


def main() -> None:
    """One child for each line."""
    folder, size = sys.argv[1], int(sys.argv[2])
    for line in sys.stdin:
        print(f"{killed(folder, size, *map(int, line.split()))}killed", flush=True)


if __name__ == "__main__":
    main()
