"""Simulated power loss: each page that was not synced is on the disk or not, at random."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from flowrl.nodes.buffers.storage import commit_file as commits
from flowrl.nodes.buffers.storage import mapped
from tests.nodes.buffers.storage.pushing_process import open_ring, rows

PAGE = 4096
SIZE = 130
Event = tuple[str, int, bytes]  # file, offset and data of a write; without data: a sync of the file


class Disk:
    """Records writes and syncs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Event] = []
        self._write, self._sync = os.pwrite, os.fdatasync
        for module in (commits, mapped):
            monkeypatch.setattr(module, "os", self)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def pwrite(self, file: int, data: bytes, at: int) -> int:
        self.events.append((self._name(file), at, bytes(data)))
        return self._write(file, data, at)

    def fdatasync(self, file: int) -> None:
        self._sync(file)
        self.events.append((self._name(file), 0, b""))

    def _name(self, file: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{file}")).name


def apply_events(folder: Path, events: list[Event], chance: random.Random) -> None:
    """Apply all writes that were synced, and a random choice of the other pages."""
    synced = {name: k for k, (name, _, data) in enumerate(events) if not data}
    for k, (name, at, data) in enumerate(events):
        with open(folder / name, "r+b") as file:
            begin = 0
            while begin < len(data):
                end = min(len(data), begin + PAGE - (at + begin) % PAGE)
                if k < synced.get(name, -1) or chance.random() < 0.5:
                    file.seek(at + begin)
                    file.write(data[begin:end])
                begin = end


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "once"])
def test_flushed_rows_survive_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ring, chance = open_ring(str(tmp_path / name), SIZE), random.Random(1)
    ring.push(rows(0, 1))
    ring.flush()
    shutil.copytree(tmp_path / name, tmp_path / "before")
    disk = Disk(monkeypatch)
    flushed = [(0, 1)]  # after each flush: the number of events, and of rows
    for _ in range(60):
        ring.push(rows(ring.written, chance.randrange(1, 20)))
        if chance.random() < 0.4:
            ring.flush()
            flushed.append((len(disk.events), ring.written))
    monkeypatch.undo()
    ring.storage.close()
    for turn in range(30):
        folder = tmp_path / f"{turn}{name}"
        shutil.copytree(tmp_path / "before", folder)
        cut = chance.randrange(len(disk.events))
        apply_events(folder, disk.events[:cut], chance)
        found = open_ring(str(folder), SIZE)
        assert found.written >= max(stop for at, stop in flushed if at <= cut)
        first = found.written - found.row_count
        held = found.in_order() if found.row_count else {}
        for column, array in held.items():
            assert np.array_equal(array, rows(first, found.row_count)[column]), column
        found.close()
        shutil.rmtree(folder)
