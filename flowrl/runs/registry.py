"""The active runs of this user on this machine: one file for each, in a folder that only the user may enter.

Beside each file lies the socket on which the run answers queries. Entries of dead processes are removed when the
registry is read, except those of runs that were killed and can be resumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import tempfile
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path

from flowrl.core.errors import FlowError
from flowrl.core.json_text import parse_object
from flowrl.machine.processes import process_start_time
from flowrl.runs.folder import SUMMARY_FILE
from flowrl.runs.snapshot_files import snapshot_folders

MAX_PATH_BYTES = 100  # of a unix socket; the system allows a few more
FILE_NAME_BYTES = 24
MAX_ENTRY_BYTES = 1 << 16


class RegistryUnavailable(FlowError):
    """The folder of the registry cannot be used."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run that answers queries."""

    pid: int
    process_start_time: str  # tells the process from a later one with the same pid
    begun_at: float  # seconds since the epoch
    graph: str
    placement: str
    run_dir: str
    socket: str


def runtime_folder() -> Path:
    """The folder of the entries, which is made if it is missing."""
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime_dir) / "flowrl" if runtime_dir else _temporary_folder()
    if len(os.fsencode(path)) > MAX_PATH_BYTES - FILE_NAME_BYTES:
        path = _temporary_folder()
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        about = path.lstat()
    except OSError as error:
        raise RegistryUnavailable(f"{path}: cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise RegistryUnavailable(
            f"{path}: is not a folder that only this user may enter; remove it"
        )
    return path


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"flowrl-{os.getuid()}"


def new_entry_paths(folder: Path) -> tuple[Path, Path]:
    """The file of a new entry, and its socket."""
    stem = f"{os.getpid()}-{secrets.token_hex(3)}"
    return folder / f"{stem}.json", folder / f"{stem}.sock"


def write_entry(path: Path, entry: RunEntry) -> None:
    """Write to a temporary file and rename it, so that no reader sees a partial entry."""
    partial = path.with_suffix(".part")
    try:
        partial.write_text(json.dumps(asdict(entry)))
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RegistryUnavailable(f"{path}: cannot be written: {error.strerror}") from error


def remove_entry(path: Path) -> None:
    """Remove an entry and its socket, as far as they exist."""
    for file in (path, path.with_suffix(".sock"), path.with_suffix(".part")):
        with contextlib.suppress(OSError):
            file.unlink()


def live_entries() -> list[RunEntry]:
    """The entries of live processes, the oldest first."""
    return _entries()[0]


def killed_entries() -> list[RunEntry]:
    """The entries of runs that were killed and can be resumed, the oldest first."""
    return _entries()[1]


def _entries() -> tuple[list[RunEntry], list[RunEntry]]:
    """The entries of live processes, and those of runs that were killed. All others are removed."""
    found = {path: _read_entry(path) for path in runtime_folder().glob("*.json")}
    live = {path: entry for path, entry in found.items() if entry is not None and is_alive(entry)}
    running = {entry.run_dir for entry in live.values()}
    killed: dict[str, RunEntry] = {}  # by folder, which may have been resumed and killed again
    for path in found.keys() - live.keys():
        entry = found[path]
        if entry is None or entry.run_dir in killed.keys() | running or not _is_resumable(entry):
            remove_entry(path)
        else:
            killed[entry.run_dir] = entry
    by_age = attrgetter("begun_at")
    return sorted(live.values(), key=by_age), sorted(killed.values(), key=by_age)


def _is_resumable(entry: RunEntry) -> bool:
    """Whether a run has a snapshot and no end."""
    folder = Path(entry.run_dir)
    try:
        return not (folder / SUMMARY_FILE).exists() and bool(snapshot_folders(folder))
    except OSError:
        return False


def _read_entry(path: Path) -> RunEntry | None:
    try:
        with path.open("rb") as file:
            fields = parse_object(file.read(MAX_ENTRY_BYTES))
        return RunEntry(**fields)
    except (OSError, ValueError, TypeError):
        return None


def is_alive(entry: RunEntry) -> bool:
    """Whether the process that made the entry still exists."""
    return process_start_time(entry.pid) == entry.process_start_time


def is_active(entry: RunEntry) -> bool:
    """Whether the run has not ended: its process exists, and so does its socket."""
    return is_alive(entry) and os.path.exists(entry.socket)
