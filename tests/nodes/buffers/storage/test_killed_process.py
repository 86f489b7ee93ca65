"""A process that writes a mapped buffer is killed at random moments; what was flushed is there."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.nodes.buffers.storage.pushing_process import opened, rows

SIZE = 300
SPARED = SIZE // 8  # rows that are given up before they must be, at most


class Killed:
    """Children that push, one after another, each killed after a while."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        call = [
            sys.executable,
            "-m",
            "tests.nodes.buffers.storage.pushing_process",
            str(folder),
            str(SIZE),
        ]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True)

    def after(self, seed: int, told: int, us: int) -> tuple[list[int], int]:
        """The rows that were flushed last, and up to where rows were begun to be pushed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seed} {told} {us}\n")
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

    def __enter__(self) -> Killed:
        return self

    def __exit__(self, *failed: object) -> None:
        self.process.communicate(timeout=60)


def must_hold(folder: Path, flushed: list[int], begun: int) -> int:
    """Open it, compare every row, and close it; gives where it stopped."""
    made = folder.exists()
    ring = opened(str(folder), SIZE)
    first, stop = ring.written - ring.row_count, ring.written
    assert stop >= flushed[1]
    overwritten = max(begun, stop) - SIZE  # at most
    assert first <= max(flushed[0], overwritten + SPARED, 0)
    if ring.row_count:
        held, given = ring.in_order(), rows(first, stop - first)
        for name, array in given.items():
            assert np.array_equal(held[name], array), name
    if begun and made:  # else it was killed before it had opened the files, or made them
        assert "did not close it: rows from number" in ring.recovery_report
    ring.close()
    return stop


def killed_often(folder: Path, times: int) -> None:
    chance, stop = random.Random(folder.name), 0
    with Killed(folder) as children:
        for seed in range(times):
            flushed, begun = children.after(seed, chance.randrange(30), chance.randrange(1500))
            stop = must_hold(folder, flushed if flushed[1] else [stop, stop], begun)
    assert stop > SIZE  # it went round
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]


@pytest.mark.parametrize("name", ["plain", "once"])
def test_what_was_flushed_survives_a_few_kills(tmp_path: Path, name: str) -> None:
    killed_often(tmp_path / name, 12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "once"])
def test_what_was_flushed_survives_a_hundred_kills(tmp_path: Path, name: str) -> None:
    killed_often(tmp_path / name, 100)


@pytest.mark.parametrize("name", ["plain", "once"])
def test_a_process_that_is_killed_while_it_makes_its_files_leaves_none(
    tmp_path: Path, name: str
) -> None:
    for turn in range(8):
        folder = tmp_path / f"{turn}" / name
        folder.parent.mkdir()
        with Killed(folder) as children:
            flushed, begun = children.after(turn, 0, 700 * turn)
            must_hold(folder, flushed, begun)
        assert [p.name for p in folder.parent.iterdir()] in ([name], [])
        assert os.path.exists(folder) or not flushed[1]
