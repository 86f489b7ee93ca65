"""How a full replay buffer is saved and loaded, measured in its own library's Python; see `bench snapshots`.

`python -m bench.peers.buffer_saves NAME ROWS FOLDER NEW_SHARE PAIRS` prints one line of JSON: seconds and bytes of the
first save and of a later one after this share of new rows, how long the caller waits at a time, and the seconds until
the rows are loaded, beside a bare read of the same bytes. Both are done PAIRS times, and the shortest counts.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.buffers import PUSH_ROWS, FlowrlBuffer, Sb3Buffer, TorchrlBuffer, make_chunks


class FlowrlSaves:
    """A snapshot of the run: what changed is copied, and written by another thread."""

    def __init__(self, rows: int, folder: Path) -> None:
        from flowrl.runs.snapshot_files import SnapshotWriter
        from flowrl.runtime.stored_pieces import StoredPieces

        self.pushes: Any = FlowrlBuffer("vector", False, rows)
        self.rows, self.run, self.rounds = rows, folder / "run", 0
        self.run.mkdir(parents=True)
        self.writer, self.stored = SnapshotWriter(self.run, 2), StoredPieces()

    def _live_parts(self) -> dict[str, Any]:
        from flowrl.core.saved_state import SavedState

        node = self.pushes.buffer
        node.ctx.reads_live_arrays = True
        saved = SavedState.of({"state": node.state_dict()})
        node.ctx.reads_live_arrays = False
        return {"node/buffer": saved}

    def copy_ahead(self) -> float:
        """What the site does before the round of the snapshot; return the longest time between two firings."""
        from flowrl.runtime.copies_ahead import CopiesAhead
        from flowrl.runtime.stored_pieces import live_arrays

        copied: list[Any] = []
        ahead = CopiesAhead(self.stored, lambda: live_arrays(self._live_parts()), copied.append)
        longest_s, _ = timed(ahead.begin)
        while not ahead.is_done:
            ahead.on_stored(self.writer.write_ahead(copied.pop()))
            longest_s = max(longest_s, timed(ahead.proceed)[0])
        return longest_s

    def copy(self) -> Any:
        """What the site does between two rounds."""
        self.rounds += 1
        return self.stored.copy_changed(self.rounds, self._live_parts())

    def write(self, parts: Any) -> None:
        """What the thread that writes does."""
        from flowrl.core.state import Count
        from flowrl.runtime.snapshot_schedule import Snapshot

        self.writer.write(Snapshot(self.rounds, Count(), None, parts), {})
        self.stored.set_stored(self.rounds, self.writer.copied_hashes)

    def load(self) -> None:
        from flowrl.runs.snapshot_files import read_newest_snapshot

        found = read_newest_snapshot(self.run).snapshot
        copy: Any = FlowrlBuffer("vector", False, self.rows)
        copy.buffer.ctx.keeps_loaded_arrays = True  # as a run that continues
        copy.buffer.load_state_dict(found.parts["node/buffer"].state_dict()["state"])
        assert copy.buffer.count == self.rows

    def files(self) -> list[Path]:
        """The files of the newest save."""
        from flowrl.runs.snapshot_files import snapshot_folders
        from flowrl.runs.snapshot_pieces import PIECES

        newest = snapshot_folders(self.run)[0]
        manifest = (newest / "manifest.json").read_text()
        pieces = [p for p in (newest.parent / PIECES).iterdir() if p.name in manifest]
        return [*newest.iterdir(), *pieces]


class FlowrlMappedSaves(FlowrlSaves):
    """The same with rows in mapped files."""

    def __init__(self, rows: int, folder: Path) -> None:
        super().__init__(rows, folder)
        from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
        from flowrl.nodes.buffers.storage.mapped import MappedStorage

        storage = MappedStorage(path=str(folder / "rows"), flush_every_rows=100_000)
        self.pushes.buffer = NaiveReplayBuffer(size=rows, batch_size=256, storage=storage)


class Sb3Saves:
    """`save_replay_buffer`, which pickles the buffer."""

    def __init__(self, rows: int, folder: Path) -> None:
        self.pushes: Any = Sb3Buffer("vector", False, rows)
        self.file = folder / "buffer.pkl"

    def copy(self) -> Any:
        from stable_baselines3.common.save_util import save_to_pkl

        save_to_pkl(self.file, self.pushes.buffer)

    def write(self, parts: Any) -> None:
        """Nothing is left to do."""

    def load(self) -> None:
        from stable_baselines3.common.save_util import load_from_pkl

        load_from_pkl(self.file)

    def files(self) -> list[Path]:
        return [self.file]


class TorchrlSaves:
    """`dumps` of the buffer, which its `Checkpoint` calls."""

    def __init__(self, rows: int, folder: Path) -> None:
        self.pushes: Any = TorchrlBuffer("vector", False, rows)
        self.rows, self.folder = rows, folder / "buffer"

    def copy(self) -> Any:
        self.pushes.buffer.dumps(self.folder)

    def write(self, parts: Any) -> None:
        """Nothing is left to do."""

    def load(self) -> None:
        copy: Any = TorchrlBuffer("vector", False, self.rows)
        copy.buffer.loads(self.folder)

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]


SAVES: dict[str, Any] = {
    "flowrl": FlowrlSaves,
    "flowrl-mapped": FlowrlMappedSaves,
    "sb3": Sb3Saves,
    "torchrl": TorchrlSaves,
}


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    begun_s = time.perf_counter()
    found = do()
    return time.perf_counter() - begun_s, found


def written_since(files: list[Path], since_ns: int) -> int:
    """The bytes of the files that were written since this time."""
    return sum(p.stat().st_size for p in files if p.stat().st_mtime_ns >= since_ns)


def save(saves: Any) -> dict[str, float]:
    """Save once; return how long the caller waits, how long it takes, and the bytes that were written."""
    os.sync()
    since_ns = time.time_ns()
    ahead_s, longest_s = timed(saves.copy_ahead) if hasattr(saves, "copy_ahead") else (0.0, 0.0)
    copy_s, parts = timed(saves.copy)
    write_s, _ = timed(lambda: saves.write(parts))
    sync_s, _ = timed(os.sync)  # peers leave it to the system when bytes reach the disk
    total_s = ahead_s + copy_s + write_s + sync_s
    stall_s = max(longest_s, copy_s)
    return {"stall_s": stall_s, "s": total_s, "bytes": written_since(saves.files(), since_ns)}


def read_bare(files: list[Path]) -> None:
    """Read files into new memory that holds all of them."""
    view = np.empty(sum(path.stat().st_size for path in files), np.uint8).data
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(view):
                view = view[count:]


def push(pushes: Any, chunks: int, number: Iterator[int]) -> None:
    """Push so many chunks of rows, all of which differ."""
    convert = getattr(pushes, "convert", lambda chunk: chunk)
    made = itertools.cycle(make_chunks("vector", 16))
    for chunk in itertools.islice(made, chunks):
        own = {name: array.copy() for name, array in chunk.items()}
        own["obs"][:, 0] = own["next_obs"][:, 1] = own["reward"][:] = next(number)
        pushes.push(convert(own))


def measure(name: str, rows: int, folder: Path, new_share: float, pairs: int) -> dict[str, Any]:
    saves, number = SAVES[name](rows, folder), itertools.count()
    push(saves.pushes, -(-rows // PUSH_ROWS), number)
    first = save(saves)
    push(saves.pushes, int(rows * new_share) // PUSH_ROWS, number)
    later = save(saves)
    found: dict[str, Any] = {"first": first, "later": later}
    if pairs:  # in turn, so that other work of the machine slows both
        files = saves.files()
        times = [(timed(lambda: read_bare(files))[0], timed(saves.load)[0]) for _ in range(pairs)]
        found["bare_s"], found["load_s"] = map(min, zip(*times, strict=True))
    return found


def main() -> None:
    name, rows, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    new_share, pairs = float(sys.argv[4]), int(sys.argv[5])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        print(json.dumps(measure(name, rows, folder, new_share, pairs)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
