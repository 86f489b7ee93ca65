"""The runs of this user on this machine: a small file for each in a folder that only the user may enter.

Beside each file lies the socket on which that run can be asked. What dead processes left is swept by whoever looks.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowrl.core.errors import FlowError

PATH_BYTES = 100  # of a unix socket's name; the system allows a few more
ENTRY_BYTES = 1 << 16


class RegistryUnavailable(FlowError):
    """The folder cannot be used."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run that can be asked."""

    pid: int
    process_start_time: (
        str  # when the process began, as the system tells it: another may get the same number
    )
    begun_at: float  # seconds since the epoch
    graph: str
    placement: str
    run_dir: str
    socket: str


def runtime_folder() -> Path:
    """Where the entries lie; made if it is missing."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(given) / "flowrl" if given else _in_temp()
    if len(os.fsencode(path)) > PATH_BYTES - 24:
        path = _in_temp()
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


def _in_temp() -> Path:
    return Path(tempfile.gettempdir()) / f"flowrl-{os.getuid()}"


def new_entry_paths(folder: Path) -> tuple[Path, Path]:
    """A new entry's file, and its socket."""
    stem = f"{os.getpid()}-{secrets.token_hex(3)}"
    return folder / f"{stem}.json", folder / f"{stem}.sock"


def write_entry(path: Path, entry: RunEntry) -> None:
    """Written aside and renamed: nobody sees half of it."""
    aside = path.with_suffix(".part")
    try:
        aside.write_text(json.dumps(asdict(entry)))
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise RegistryUnavailable(f"{path}: cannot be written: {error.strerror}") from error


def remove_entry(path: Path) -> None:
    """The entry and its socket, whatever is left of them."""
    for left in (path, path.with_suffix(".sock"), path.with_suffix(".part")):
        with contextlib.suppress(OSError):
            left.unlink()


def live_entries() -> list[RunEntry]:
    """The runs that live, the oldest first; what the dead left is removed."""
    folder = runtime_folder()
    found = []
    for path in folder.glob("*.json"):
        entry = _read(path)
        if entry is None or not is_alive(entry):
            remove_entry(path)
        else:
            found.append(entry)
    return sorted(found, key=lambda entry: entry.begun_at)


def _read(path: Path) -> RunEntry | None:
    try:
        with path.open("rb") as file:
            told: Any = json.loads(file.read(ENTRY_BYTES))
        return RunEntry(**told)
    except (OSError, ValueError, TypeError):
        return None


def is_alive(entry: RunEntry) -> bool:
    """Whether the process that made the entry is still there."""
    return process_start_time(entry.pid) == entry.process_start_time


def process_start_time(pid: int) -> str | None:
    """When a process began, in the system's own words; None: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "?"
