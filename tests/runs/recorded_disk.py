"""Records what a program does to files, and shows what a disk may hold of it after a loss of power.

The bytes of a file are on the disk when the file was synced, and its name when its folder was. Of what was done to a
file or a folder since, a loss of power may take the end.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Operation = tuple[Any, ...]


class Killed(BaseException):
    """Ends the program in place of an operation."""


class RecordedDisk:
    """Records the writes, syncs, renames, new folders and removals below a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.operations: list[Operation] = []
        self.before: Callable[[Operation], None] = lambda operation: None  # called before each one
        self._begin = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self._folders = [path for path in folder.rglob("*") if path.is_dir()]
        recorded = {
            (Path, "open"): self._open,
            (Path, "rename"): self._rename,
            (Path, "mkdir"): self._mkdir,
            (os, "unlink"): self._unlink,
            (os, "rmdir"): self._rmdir,
            (os, "fsync"): self._fsync,
        }
        self._real = {name: getattr(owner, name) for owner, name in recorded}
        for (owner, name), call in recorded.items():
            monkeypatch.setattr(owner, name, call)
        monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: self._unlink(path))

    def _note(self, *operation: Any) -> None:
        self.before(operation)
        self.operations.append(operation)

    # a method of a class in place of a function: `functools.partial` would not bind the path

    @property
    def _open(self) -> Any:
        disk = self

        def opened(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
            if "w" in mode:
                disk._note("create", path)
            file = disk._real["open"](path, mode, *more, **options)
            if "w" not in mode:
                return file
            return RecordedFile(disk, path, file)

        return opened

    @property
    def _rename(self) -> Any:
        def renamed(path: Path, target: Path) -> Any:
            self._note("rename", path, Path(target))
            return self._real["rename"](path, target)

        return renamed

    @property
    def _mkdir(self) -> Any:
        def made(path: Path, *more: Any, **options: Any) -> None:
            if not path.exists() and path.parent.exists():
                self._note("mkdir", path)
            self._real["mkdir"](path, *more, **options)

        return made

    def _unlink(self, path: Any, dir_fd: int | None = None) -> None:
        self._note("unlink", self._absolute(path, dir_fd))
        self._real["unlink"](path, dir_fd=dir_fd)

    def _rmdir(self, path: Any, dir_fd: int | None = None) -> None:
        self._note("unlink", self._absolute(path, dir_fd))
        self._real["rmdir"](path, dir_fd=dir_fd)

    def _fsync(self, descriptor: int) -> None:
        self._note("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        self._real["fsync"](descriptor)

    def _absolute(self, path: Any, dir_fd: int | None) -> Path:
        parent = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        return Path(parent) / path

    def after_power_loss(self, count: int, target: Path, rng: random.Random) -> None:
        """Make the tree in `target` that a disk may hold if the power is lost after the first `count` operations."""
        model = DiskModel(self.folder, self._begin, self._folders)
        for operation in self.operations[:count]:
            model.apply(operation)
        model.write_survivors(target, rng)


class RecordedFile:
    """A file that is written to."""

    def __init__(self, disk: RecordedDisk, path: Path, file: Any) -> None:
        self._disk, self._path, self._file = disk, path, file

    def __enter__(self) -> RecordedFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, content: Any) -> int:
        self._disk._note("write", self._path, bytes(content))
        return int(self._file.write(content))


class Inode:
    """A file or a folder: its state on the disk, and what was done to it since the last sync."""

    def __init__(self, is_folder: bool) -> None:
        self.is_folder = is_folder
        self.content = b""
        self.entries: dict[str, Inode] = {}
        # Bytes of a file; (names that go, names that come) of a folder.
        self.pending: list[Any] = []

    def survivor(self, rng: random.Random | None) -> Any:
        """What is left with some of the pending changes; without `rng`, with all of them."""
        kept = self.pending if rng is None else self.pending[: rng.randint(0, len(self.pending))]
        if not self.is_folder:
            content = self.content + b"".join(kept)
            return content
        entries = dict(self.entries)
        for gone, come in kept:
            for name in gone:
                entries.pop(name, None)
            entries |= come
        return entries

    def sync(self) -> None:
        if self.is_folder:
            self.entries = self.survivor(None)
        else:
            self.content = self.survivor(None)
        self.pending = []


class DiskModel:
    """Files and folders, each with what is on the disk and what is not yet."""

    def __init__(self, root: Path, files: dict[Path, bytes], folders: list[Path]) -> None:
        self._root_path, self.root = root, Inode(True)
        for path in sorted(folders):
            self._parent(path).entries[path.name] = Inode(True)
        for path, content in files.items():
            inode = self._parent(path).entries[path.name] = Inode(False)
            inode.content = content

    def _find(self, path: Path) -> Inode:
        inode = self.root
        for name in path.relative_to(self._root_path).parts:
            inode = inode.survivor(None)[name]
        return inode

    def _parent(self, path: Path) -> Inode:
        return self._find(path.parent)

    def apply(self, operation: Operation) -> None:
        kind, path, *more = operation
        if kind == "sync":
            self._find(path).sync()
        elif kind == "write":
            self._find(path).pending.append(more[0])
        elif kind in ("create", "mkdir"):
            self._parent(path).pending.append(([], {path.name: Inode(kind == "mkdir")}))
        elif kind == "unlink":
            self._parent(path).pending.append(([path.name], {}))
        elif kind == "rename":
            assert path.parent == more[0].parent
            come = {more[0].name: self._find(path)}
            self._parent(path).pending.append(([path.name], come))

    def write_survivors(self, target: Path, rng: random.Random) -> None:
        self._write(self.root, target, rng)

    def _write(self, inode: Inode, target: Path, rng: random.Random) -> None:
        found = inode.survivor(rng)
        if not inode.is_folder:
            target.write_bytes(found)
            return
        target.mkdir()
        for name, entry in found.items():
            self._write(entry, target / name, rng)
