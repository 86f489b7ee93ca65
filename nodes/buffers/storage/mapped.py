"""Mapped storage: columns in memory-mapped files, which may be larger than memory and outlive the process.

A folder contains `about.json` (the layout), `commits` (which rows the files hold; see `commit_file`), and two files for
each column: `<k>.rows`, and `<k>.sums` with the checksum of each row. Checksums are written when rows are flushed, and
checked when the folder is opened.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.context import Context
from flowrl.core.json_text import parse_object
from flowrl.machine.processes import process_exists
from flowrl.machine.resource_limits import free_memory_bytes
from flowrl.nodes.buffers.storage.commit_file import CommitFile, CommitRecord
from flowrl.nodes.buffers.storage.deduplication import observation_pairs, pool_name
from flowrl.nodes.buffers.storage.limits import preallocate
from flowrl.nodes.buffers.storage.row_checksums import RowChecksum, blocks_of
from flowrl.nodes.buffers.storage.storage import (
    Allocations,
    ColumnStore,
    RecoveredRows,
    RingLayout,
    Storage,
)

FORMAT = 3
LAYOUT_FILE, COMMIT_FILE = "about.json", "commits"
RELEASES_PER_FLUSH = 16  # the most releases of rows between two flushes
MAX_RELEASED_SHARE = 8  # one release covers at most this fraction (1/8) of all rows
SUM_BYTES = 8  # the checksum of a row
MAX_WRITE_BYTES = 1 << 30  # in one system call; Linux accepts at most 2 GiB


class MappedStorage(Storage):
    """Stores columns in files. Flushed rows survive however the process ends."""

    persistent: ClassVar[bool] = True

    class Config(BaseConfig):
        path: str = param(
            ...,
            "the folder, relative to the working directory of the run; replica k uses path#k",
            min_length=1,
            output=True,
        )
        on_existing: Literal["error", "reuse", "new"] = param(
            "error", "an existing folder is refused (error), continued (reuse), or deleted (new)"
        )
        flush_every_rows: int = param(
            10_000, "rows from one flush to the next; a crash loses about this many at most", ge=1
        )

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._path, self._on_existing = Path(self.config.path), str(self.config.on_existing)
        self._columns: dict[str, MappedColumn] = {}
        self._commit_file: CommitFile | None = None
        self._release_rows = 1  # additional rows of each release

    @property
    def nondeterministic(self) -> str:
        """With `reuse`, because the rows that a run begins with are not part of the graph."""
        return f"begins with the rows in '{self._path}'" if self._on_existing == "reuse" else ""

    def bind(self, ctx: Context) -> None:
        """Use a separate folder for each replica. A node that is restarted within a run continues with its rows.

        In a run that continues from a snapshot, the snapshot has the rows, and the folder is made anew.
        """
        if ctx.replica:
            self._path = self._path.with_name(f"{self._path.name}#{ctx.replica}")
        if ctx.restarts:
            self._on_existing = "reuse"
        elif ctx.continues:
            self._on_existing = "new"

    def memory_bytes(self, row_bytes: int) -> int:
        """Return 0: the system can reclaim the pages of mapped files."""
        return 0

    def recover(self) -> RecoveredRows | None:
        """Open the rows in the folder if `on_existing` says so; delete or refuse the folder otherwise."""
        if not hasattr(os, "posix_fallocate"):
            raise OSError("storage: mapped files require Linux; write `storage: compressed`")
        _delete_unfinished(self._path)
        if not os.path.lexists(self._path):
            return None
        if self._on_existing == "error":
            raise FileExistsError(
                f"'{self._path}' exists already; write `on_existing: reuse` to continue with its rows, "
                "`on_existing: new` to delete them, or set another `path`"
            )
        layout, columns = _read_layout(self._path)
        with _reported_files(self._path):
            commit_file = CommitFile(self._path / COMMIT_FILE)
        if self._on_existing == "new":
            try:
                _delete_buffer(self._path, len(columns))
            finally:
                commit_file.close()
            return None
        record = commit_file.record
        try:
            with _reported_files(self._path):
                self._open_columns(layout, columns, commit_file, self._path)
                self._check_rows(layout, record)
            commit_file.write(replace(record, closed=False, released_rows=0))
        except BaseException:
            self.close()
            raise
        return RecoveredRows(layout, dict(self._columns), record, _report(self._path, record))

    def allocate(self, columns: Allocations, layout: RingLayout) -> dict[str, ColumnStore]:
        """Make the files in a temporary folder, and rename the folder when all files are complete."""
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        try:
            temporary.mkdir(parents=True)
        except OSError as error:
            raise OSError(
                error.errno,
                f"'{self._path}' cannot be made: {error.strerror}; set another `path` of the storage",
            ) from error
        try:
            (temporary / LAYOUT_FILE).write_text(
                json.dumps(_layout_json(columns, layout), indent=1)
            )
            commit_file = CommitFile(temporary / COMMIT_FILE, CommitRecord())
            self._open_columns(layout, columns, commit_file, temporary)
            commit_file.write(CommitRecord(closed=False))
            os.rename(temporary, self._path)
            _sync_folder(self._path.parent)
        except BaseException:
            self.close()
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return dict(self._columns)

    def grow(self, name: str, rows: ColumnStore, places: int) -> ColumnStore:
        self._columns[name].grow(places)
        return self._columns[name]

    def release_before(self, first_row: int) -> None:
        """Remove rows from the commit record before they are overwritten.

        Each record costs a write to the disk, so additional rows, the next oldest, are released at the same time.
        """
        record = self._open_commit_file().record
        if first_row > record.first_row < record.stop_row:
            first = min(first_row + self._release_rows, record.stop_row)
            released = record.released_rows + first - record.first_row
            self._open_commit_file().write(replace(record, first_row=first, released_rows=released))

    def after_write(self, first_row: int, stop_row: int, next_place: int) -> None:
        if stop_row - self._open_commit_file().record.stop_row >= self.config.flush_every_rows:
            self.flush(first_row, stop_row, next_place)

    def flush(self, first_row: int, stop_row: int, next_place: int, closed: bool = False) -> None:
        """Write the commit record after all rows that it covers are on the disk."""
        for column in self._columns.values():
            column.flush()
        self._open_commit_file().write(CommitRecord(first_row, stop_row, next_place, 0, closed))

    def close(self) -> None:
        if self._commit_file is not None:
            self._commit_file.close()
        for column in self._columns.values():
            column.close()
        self._commit_file, self._columns = None, {}

    def _open_columns(
        self, layout: RingLayout, columns: Allocations, commit_file: CommitFile, folder: Path
    ) -> None:
        rows = min(
            self.config.flush_every_rows // RELEASES_PER_FLUSH, layout.size // MAX_RELEASED_SHARE
        )
        self._commit_file, self._release_rows = commit_file, max(rows, 1)
        for k, (name, (column, places)) in enumerate(columns.items()):
            file = folder / f"{k}.rows"
            self._columns[name] = MappedColumn(file, column, places, new=folder != self._path)

    def _check_rows(self, layout: RingLayout, record: CommitRecord) -> None:
        """Raise an error if rows of a commit, or frames of theirs, have other bytes than were written."""
        numbers = np.arange(record.first_row, record.stop_row)
        places = (numbers - (record.stop_row - record.next_place)) % layout.size
        for name in layout.schema:
            self._columns[name].check(places)
        pairs = {} if layout.frames is None else observation_pairs(layout.schema)
        for name, next_name in pairs.items():
            frames = [self._columns[column].take(places) for column in (name, next_name)]
            self._columns[pool_name(name)].check(np.unique(np.concatenate(frames)))

    def _open_commit_file(self) -> CommitFile:
        if self._commit_file is None:
            raise ValueError(f"'{self._path}' is closed")
        return self._commit_file


class MappedColumn:
    """The rows of one column, in one file.

    Rows are written with `pwrite` and read through a map of the file. Writing through the map would first read
    each page from the disk, and a disk error would end the process with a signal. The map immediately reflects
    what `pwrite` has written.
    """

    def __init__(self, path: Path, column: Column, places: int, new: bool = True) -> None:
        """Create files with `places` places, or open some with at least as many (they may have grown)."""
        self._path, self._column = path, column
        self._checksum = RowChecksum(column.row_bytes)
        self._unsummed: list[list[int]] = []  # ranges of places whose checksums are to be written
        sums_path = path.with_suffix(".sums")
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if new else 0)
        with ExitStack() as opened:
            self._file = os.open(path, flags, 0o644)
            opened.callback(os.close, self._file)
            self._sums_file = os.open(sums_path, flags, 0o644)
            opened.callback(os.close, self._sums_file)
            for file, row_bytes in ((self._file, column.row_bytes), (self._sums_file, SUM_BYTES)):
                if not new and os.fstat(file).st_size < places * row_bytes:
                    shorter = path if file == self._file else sums_path
                    raise ValueError(f"'{shorter}' is too short: another program changed it")
            self.grow(places)
            opened.pop_all()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """The bytes of the file."""
        return self._rows.nbytes

    def grow(self, places: int) -> None:
        """Extend the files to at least `places` places, and reserve the disk space."""
        row_bytes = max(self._column.row_bytes, 1)
        required = max(places * row_bytes, 1)
        if os.fstat(self._file).st_size < required:
            preallocate(self._file, self._path, required)
        if os.fstat(self._sums_file).st_size < places * SUM_BYTES:
            preallocate(self._sums_file, self._path.with_suffix(".sums"), places * SUM_BYTES)
        length = os.fstat(self._file).st_size
        mapped = self._map = mmap.mmap(self._file, length, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)  # rows are drawn in random order
        free = free_memory_bytes()
        self._prefetches = free is not None and length > free // 2
        count = length // row_bytes if self._column.row_bytes else places
        flat = np.frombuffer(mapped, np.uint8, count * self._column.row_bytes)
        self._rows: Array = flat.view(self._column.dtype).reshape(count, *self._column.shape)

    def __getitem__(self, places: slice, /) -> Array:
        """Return a view of rows. In a large file, the disk is asked for all of them at once."""
        first, stop, _ = places.indices(len(self._rows))
        if self._prefetches and stop > first:
            self._prefetch(first, stop)
        return self._rows[places]

    def __setitem__(self, places: slice | Array, rows: Array, /) -> None:
        """Write rows. Rows at consecutive places are written together."""
        if isinstance(places, slice):
            self._write(places.start, rows)
            return
        breaks = np.flatnonzero(np.diff(places) != 1) + 1
        for block, part in zip(np.split(places, breaks), np.split(rows, breaks), strict=True):
            if len(block):
                self._write(int(block[0]), part)

    def take(self, places: Array, axis: int = 0, /, *, mode: Literal["clip"] = "clip") -> Array:
        """Gather rows. In a large file, all rows are requested first, so that the disk reads them concurrently."""
        if self._prefetches:
            for place in places.tolist():
                self._prefetch(place, place + 1)
        return self._rows.take(places, 0, mode=mode)

    def _prefetch(self, first: int, stop: int) -> None:
        """Ask the disk for rows without waiting for them."""
        size = self._column.row_bytes
        begin, end = first * size, stop * size
        page = begin - begin % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, page, end - page)

    def flush(self) -> None:
        """Write the checksums of new rows, and wait until all writes are on the disk."""
        for first, stop in self._unsummed:
            for begin, end in blocks_of(first, stop, self._column.row_bytes):
                sums = self._checksum.of(self._rows[begin:end])
                _write_all(self._sums_file, sums, begin * SUM_BYTES)
        self._unsummed = []
        os.fdatasync(self._file)
        os.fdatasync(self._sums_file)

    def check(self, places: Array) -> None:
        """Raise ValueError if rows at these places do not have their checksums."""
        sums = np.fromfile(self._path.with_suffix(".sums"), np.uint64)
        wrong = []
        for begin, end in blocks_of(0, len(places), self._column.row_bytes):
            block = places[begin:end]
            wrong.append(block[self._checksum.of(self.take(block)) != sums[block]])
        damaged = np.concatenate(wrong) if wrong else places
        if len(damaged):
            raise ValueError(
                f"'{self._path}' is damaged: {len(damaged)} of {len(places)} rows have other bytes than were written "
                f"(place {damaged[0]}); write `on_existing: new` to delete the buffer, or set another `path`"
            )

    def close(self) -> None:
        """Close the files. Arrays that `take` returned are copies, and stay valid."""
        os.close(self._file)
        os.close(self._sums_file)

    def _write(self, place: int, rows: Array) -> None:
        _write_all(self._file, rows, place * self._column.row_bytes)
        if self._unsummed and self._unsummed[-1][1] == place:
            self._unsummed[-1][1] += len(rows)
        else:
            self._unsummed.append([place, place + len(rows)])


def _write_all(file: int, array: Array, offset: int) -> None:
    """Write the bytes of an array at an offset of a file."""
    remaining = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while len(remaining):
        written = os.pwrite(file, remaining[:MAX_WRITE_BYTES], offset)
        remaining, offset = remaining[written:], offset + written


def _layout_json(columns: Allocations, layout: RingLayout) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "size": layout.size,
        "frames": layout.frames,
        "schema": {name: [c.dtype, list(c.shape)] for name, c in layout.schema.items()},
        "columns": {name: [c.dtype, list(c.shape), n] for name, (c, n) in columns.items()},
    }


def _read_layout(path: Path) -> tuple[RingLayout, Allocations]:
    try:
        content = parse_object((path / LAYOUT_FILE).read_text(encoding="utf-8"))
        version = content["format"]
    except (OSError, ValueError, KeyError) as error:
        raise _not_a_buffer(path, error) from error
    if version != FORMAT:
        raise ValueError(f"'{path}' has format {version}; this version of flowrl reads {FORMAT}")
    try:
        schema = {name: _read_column(*written) for name, written in content["schema"].items()}
        columns = {
            name: (_read_column(dtype, shape), _positive(places))
            for name, (dtype, shape, places) in content["columns"].items()
        }
        return RingLayout(schema, _positive(content["size"]), content["frames"]), columns
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _not_a_buffer(path, error) from error


def _not_a_buffer(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"'{path}' is not a buffer of flowrl ({LAYOUT_FILE}: {error}); nothing in it was changed; "
        "set another `path`"
    )


def _read_column(dtype: str, shape: list[int]) -> Column:
    if np.dtype(dtype).hasobject:
        raise ValueError(f"the column type {dtype}")
    return Column(str(dtype), tuple(map(_positive, shape)))


def _positive(number: Any) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"the size {number!r:.40}")
    return number


@contextmanager
def _reported_files(path: Path) -> Iterator[None]:
    """Report which file of a buffer cannot be opened. A buffer that is in use reports that itself."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        if error.filename is None:
            raise
        raise ValueError(
            f"'{error.filename}' cannot be opened: {error.strerror}; it is a file of the buffer '{path}', in which "
            "nothing was changed; restore it, or set another `path`"
        ) from error


def _report(path: Path, record: CommitRecord) -> str:
    """Describe the rows that were recovered, and those that an earlier process lost."""
    recovered = f"'{path}' holds {record.stop_row - record.first_row} rows"
    if record.closed:
        return recovered
    lost = f"rows from number {record.stop_row} on were not flushed and are lost"
    if record.released_rows:
        lost += f", and so are {record.released_rows} of the oldest, which may be overwritten"
    return f"{recovered}; process {record.pid} did not close it: {lost}"


def _delete_buffer(path: Path, columns: int) -> None:
    """Delete the folder if it contains nothing but the buffer's files."""
    own = {LAYOUT_FILE, COMMIT_FILE}
    own |= {f"{k}.{kind}" for k in range(columns) for kind in ("rows", "sums")}
    others = sorted({file.name for file in path.iterdir()} - own)
    if others:
        raise ValueError(
            f"'{path}' also contains '{others[0]}', which does not belong to the buffer; nothing was deleted"
        )
    shutil.rmtree(path)


def _unfinished_folders(path: Path) -> Iterator[Path]:
    return path.parent.glob(f".{path.name}.*.new") if path.parent.is_dir() else iter(())


def _delete_unfinished(path: Path) -> None:
    """Delete temporary folders of processes that were killed in `allocate`, so that no process holds their lock."""
    for folder in list(_unfinished_folders(path)):
        pid = folder.name.split(".")[-2]
        try:
            if (folder / COMMIT_FILE).exists():
                CommitFile(folder / COMMIT_FILE).close()
            elif process_exists(int(pid)):
                continue  # the process has not created its lock yet
        except BlockingIOError:
            continue
        except ValueError:
            pass  # the process was killed before it wrote its first record
        shutil.rmtree(folder, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
