"""Mapped storage: columns in files, larger than memory, that outlive the process.

A folder holds `about.json` (what the columns are), `commits` (which rows are there), and a file a column.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from flowrl.core.batch import Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.context import Context
from flowrl.nodes.buffers.commits import Claim, Commits
from flowrl.nodes.buffers.mapped_rows import MappedRows
from flowrl.nodes.buffers.storage import Found, Places, Rows, Storage, Table

FORMAT = 1
ABOUT, COMMITS = "about.json", "commits"
RECORDS = 16  # of claims that are given up, from one flush to the next
LARGEST_PART = 8  # but no more than this part of all rows at once


class Mapped(Storage):
    """What was flushed is there again, however the process ended."""

    keeps: ClassVar[bool] = True

    class Config(BaseConfig):
        path: str = param(
            ...,
            "the folder (relative: to where the run is started); replica k: path#k",
            min_length=1,
        )
        on_existing: Literal["error", "reuse", "new"] = param(
            "error", "a folder with rows is: refused; gone on with; emptied, its rows deleted"
        )
        flush_every_rows: int = param(
            10_000, "rows from one flush to the next: more than these a crash does not cost", ge=1
        )

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._path, self._existing = Path(self.config.path), str(self.config.on_existing)
        self._rows: dict[str, MappedRows] = {}
        self._commits: Commits | None = None
        self._spared = 1

    @property
    def nondeterministic(self) -> str:
        """What a run finds is not in the graph."""
        return f"begins with the rows in '{self._path}'" if self._existing == "reuse" else ""

    def belongs_to(self, ctx: Context) -> None:
        """Each replica has a folder; a node that is made anew in a run goes on with its own."""
        if ctx.replica:
            self._path = self._path.with_name(f"{self._path.name}#{ctx.replica}")
        if ctx.restarts:
            self._existing = "reuse"

    def memory_bytes(self, full_bytes: int) -> int:
        """None: what is in memory are pages that the system can take away."""
        return 0

    def open(self) -> Found | None:
        """The rows that are there, if they are to be gone on with."""
        if not hasattr(os, "posix_fallocate"):
            raise OSError("storage: mapped files need Linux; say `storage: compressed`")
        _remove_remains(self._path)
        if not os.path.lexists(self._path):
            return None
        if self._existing == "error":
            raise FileExistsError(
                f"'{self._path}' is there already; say `on_existing: reuse` to go on with its rows, "
                "`on_existing: new` to delete them, or give another `path`"
            )
        table, columns = _about(self._path)
        commits = Commits(self._path / COMMITS)
        if self._existing == "new":
            try:
                _remove(self._path, len(columns))
            finally:
                commits.close()
            return None
        claim = commits.claim
        try:
            self._begin(table, columns, commits, self._path)
            commits.write(replace(claim, closed=False, given_up=0))
        except BaseException:
            self.close()
            raise
        return Found(table, self._held(), claim, _report(self._path, claim))

    def allocate(self, columns: Places, table: Table) -> dict[str, Rows]:
        """Files for all columns, made aside, and put in their place when they are whole."""
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        aside.mkdir(parents=True)
        try:
            (aside / ABOUT).write_text(json.dumps(_described(columns, table), indent=1))
            commits = Commits(aside / COMMITS, Claim())
            self._begin(table, columns, commits, aside)
            commits.write(Claim(closed=False))
            os.rename(aside, self._path)
            _sync(self._path.parent)
        except BaseException:
            self.close()
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return self._held()

    def grow(self, name: str, rows: Rows, places: int) -> Rows:
        """A longer file, and another map of it."""
        self._rows[name].grow(places)
        return self._rows[name]

    def leave(self, first: int) -> None:
        """Rows before this one will be overwritten: they are not claimed from now on."""
        claim = self._open().claim
        if first > claim.first < claim.stop:
            spared = min(first + self._spared, claim.stop)
            given_up = claim.given_up + spared - claim.first
            self._open().write(replace(claim, first=spared, given_up=given_up))

    def wrote(self, first: int, stop: int, place: int) -> None:
        """These rows are held now; the next one goes to this place."""
        if stop - self._open().claim.stop >= self.config.flush_every_rows:
            self.flush(first, stop, place)

    def flush(self, first: int, stop: int, place: int, closed: bool = False) -> None:
        """Claim these rows, when all of them are on the disk."""
        for rows in self._rows.values():
            rows.flush()
        self._open().write(Claim(first, stop, place, 0, closed))

    def close(self) -> None:
        """Let go of the files."""
        if self._commits is not None:
            self._commits.close()
        for rows in self._rows.values():
            rows.close()
        self._commits, self._rows = None, {}

    def _begin(self, table: Table, columns: Places, commits: Commits, path: Path) -> None:
        spared = min(self.config.flush_every_rows // RECORDS, table.size // LARGEST_PART)
        self._commits, self._spared = commits, max(spared, 1)
        for k, (name, (column, places)) in enumerate(columns.items()):
            file = path / f"{k}.rows"
            self._rows[name] = MappedRows(file, column, places, new=path != self._path)

    def _held(self) -> dict[str, Rows]:
        return dict(self._rows)

    def _open(self) -> Commits:
        if self._commits is None:
            raise ValueError(f"'{self._path}' is closed")
        return self._commits


def _described(columns: Places, table: Table) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "size": table.size,
        "frames": table.frames,
        "schema": {name: [c.dtype, list(c.shape)] for name, c in table.schema.items()},
        "columns": {name: [c.dtype, list(c.shape), n] for name, (c, n) in columns.items()},
    }


def _about(path: Path) -> tuple[Table, Places]:
    """What a folder says of its columns."""
    try:
        told = json.loads((path / ABOUT).read_text())
        known = told["format"]
    except (OSError, ValueError, TypeError, KeyError) as other:
        raise ValueError(
            f"'{path}' is no buffer of flowrl ({other}); nothing in it was touched; "
            "give another `path`"
        ) from other
    if known != FORMAT:
        raise ValueError(f"'{path}' has format {known}; this flowrl reads format {FORMAT}")
    schema = {name: Column(dtype, tuple(shape)) for name, (dtype, shape) in told["schema"].items()}
    columns = {name: (Column(d, tuple(s)), n) for name, (d, s, n) in told["columns"].items()}
    return Table(schema, told["size"], told["frames"]), columns


def _report(path: Path, claim: Claim) -> str:
    """What was found, and what an earlier process lost."""
    found = f"'{path}' holds {claim.stop - claim.first} rows"
    if claim.closed:
        return found
    lost = f"what came after the first {claim.stop} was not flushed and is lost"
    if claim.given_up:
        lost += f", so are {claim.given_up} of the oldest, which it may have overwritten"
    return f"{found}; process {claim.pid} did not close it: {lost}"


def _remove(path: Path, columns: int) -> None:
    """Delete what a buffer has made, and only if there is nothing else."""
    ours = {ABOUT, COMMITS, *(f"{k}.rows" for k in range(columns))}
    others = sorted({found.name for found in path.iterdir()} - ours)
    if others:
        raise ValueError(
            f"'{path}' also holds '{others[0]}', which is not the buffer's; nothing was deleted"
        )
    shutil.rmtree(path)


def _remains(path: Path) -> Iterator[Path]:
    return path.parent.glob(f".{path.name}.*.new") if path.parent.is_dir() else iter(())


def _remove_remains(path: Path) -> None:
    """A process that was killed while it made its files left them; nobody holds their lock."""
    for aside in list(_remains(path)):
        pid = aside.name.split(".")[-2]
        try:
            if (aside / COMMITS).exists():
                Commits(aside / COMMITS).close()
            elif os.path.exists(f"/proc/{pid}"):
                continue  # it is about to make its lock
        except BlockingIOError:
            continue
        except ValueError:
            pass  # killed before its first record
        shutil.rmtree(aside, ignore_errors=True)


def _sync(folder: Path) -> None:
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
