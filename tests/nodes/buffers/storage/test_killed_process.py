"""A process that writes to a mapped buffer is killed at random moments; flushed rows survive."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.nodes.buffers.storage.pushing_process import open_ring, rows

SIZE = 300
RELEASED_ROWS = SIZE // 8  # the most rows that are released before they are overwritten


class KilledProcesses:
    """Processes that push rows, each killed after a while. They are forked by one process, so they start quickly."""

    def __init__(self) -> None:
        call = [sys.executable, "-m", "tests.nodes.buffers.storage.pushing_process", str(SIZE)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True)

    def run(self, folder: Path, seed: int, lines: int, us: int) -> tuple[list[int], int]:
        """Push and kill; return the rows that were flushed last, and the end of the rows that may have been pushed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder} {seed} {lines} {us}\n")
        self.process.stdin.flush()
        flushed, begun = [0, 0], 0
        for word, *numbers in self.lines():
            if word == "flushed":
                flushed = [int(n) for n in numbers]
            else:
                begun = int(numbers[0])
        return flushed, begun

    def lines(self) -> Iterator[list[str]]:
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline().split()) != ["killed"]:
            assert line, "the process has ended"
            yield line

    def __enter__(self) -> KilledProcesses:
        return self

    def __exit__(self, *failed: object) -> None:
        self.process.communicate(timeout=60)


def reopen_and_compare(folder: Path, flushed: list[int], begun: int) -> int:
    """Open the buffer, compare every row, and close it; return the end of its rows."""
    existed = folder.exists()
    ring = open_ring(str(folder), SIZE)
    first, stop = ring.oldest, ring.written
    assert stop >= flushed[1]
    overwritten = max(begun, stop) - SIZE  # at most
    assert first <= max(flushed[0], overwritten + RELEASED_ROWS, 0)
    if ring.row_count:
        held, expected = ring.in_order(), rows(first, stop - first)
        for name, array in expected.items():
            assert np.array_equal(held[name], array), name
    if begun and existed:  # otherwise it was killed before it had made or opened the files
        assert "did not close it: rows from number" in ring.recovery_report
    ring.close()
    return stop


def kill_repeatedly(folder: Path, times: int) -> None:
    chance, stop = random.Random(folder.name), 0
    with KilledProcesses() as processes:
        for seed in range(times):
            lines, us = chance.randrange(30), chance.randrange(1500)
            flushed, begun = processes.run(folder, seed, lines, us)
            stop = reopen_and_compare(folder, flushed if flushed[1] else [stop, stop], begun)
    assert stop > SIZE  # rows were overwritten
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "once"])
def test_flushed_rows_survive_a_few_kills(tmp_path: Path, name: str) -> None:
    kill_repeatedly(tmp_path / name, 12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["plain", "once"])
def test_flushed_rows_survive_a_hundred_kills(tmp_path: Path, name: str) -> None:
    kill_repeatedly(tmp_path / name, 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "once"])
def test_a_process_that_is_killed_while_it_makes_its_files_leaves_none(
    tmp_path: Path, name: str
) -> None:
    with KilledProcesses() as processes:
        for turn in range(8):
            folder = tmp_path / f"{turn}" / name
            folder.parent.mkdir()
            flushed, begun = processes.run(folder, turn, 0, 700 * turn)
            reopen_and_compare(folder, flushed, begun)
            assert [p.name for p in folder.parent.iterdir()] in ([name], [])
            assert os.path.exists(folder) or not flushed[1]
