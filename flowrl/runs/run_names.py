"""Which run a user names: by its folder, its name or a unique prefix of it, a pid, or `last`.

`last` is the newest run under the working folder, for every verb alike, whether the run is active or has ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from flowrl.core.errors import UsageError
from flowrl.runs.folder import ENVIRONMENT_FILE, SUMMARY_FILE
from flowrl.runs.registry import RegistryUnavailable, RunEntry, live_entries

LAST = "last"
RUN_DEPTH = 3  # how many folders deep runs are looked for, as in runs/sweep/1
MAX_NAMED = 8  # runs in an error message


def find_live_run(text: str) -> RunEntry:
    """The active run that a word names."""
    found = live_entries()
    if text == LAST:
        live = _by_folder(found)
        newest = _newest_run(live)
        if newest not in live:
            raise UsageError(
                f"last: the newest run under this folder is {newest.name}, which is not active; "
                f"{_active_runs(found)}"
            )
        return live[newest]
    path = os.path.abspath(text)
    for matches in (
        [e for e in found if e.run_dir == path],
        [e for e in found if str(e.pid) == text],
        [e for e in found if Path(e.run_dir).name == text],
        [e for e in found if Path(e.run_dir).name.startswith(text)],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UsageError(f"{text}: is ambiguous; {_active_runs(matches)}")
    has_ended = (Path(path) / SUMMARY_FILE).is_file()
    what = "the run has ended" if has_ended else "there is no such active run"
    raise UsageError(f"{text}: {what}; {_active_runs(found)}")


def find_run_folder(text: str) -> tuple[Path, RunEntry | None]:
    """The folder of a run that is active or has ended, and its entry if it is active."""
    try:
        live = _by_folder(live_entries())
    except RegistryUnavailable:
        live = {}  # the folders of runs can be found without it
    if text == LAST:
        newest = _newest_run(live)
        return newest, live.get(newest)
    if (Path(text) / "graph.yaml").is_file():
        return Path(os.path.abspath(text)), live.get(_real_path(text))
    every = sorted({*live, *_run_folders_here()}, key=lambda p: _started_at(p, live))
    for matches in (
        [p for p in every if p.name == text or (p in live and str(live[p].pid) == text)],
        [p for p in every if p.name.startswith(text)],
    ):
        if len(matches) == 1:
            return matches[0], live.get(matches[0])
        if matches:
            names = ", ".join(p.name for p in matches[-MAX_NAMED:])
            raise UsageError(f"{text}: is ambiguous; {names}")
    names = ", ".join(p.name for p in every[-MAX_NAMED:]) or "there is none"
    raise UsageError(f"{text}: there is no such run here; runs: {names}")


def existing_run_path(text: str) -> Path:
    """The folder of a run that is active or has ended. An existing folder is taken as it is written."""
    if text != LAST and Path(text).is_dir():
        return Path(text)
    return find_run_folder(text)[0]


def _by_folder(entries: list[RunEntry]) -> dict[Path, RunEntry]:
    return {_real_path(entry.run_dir): entry for entry in entries}


def _real_path(path: str | Path) -> Path:
    return Path(os.path.realpath(path))


def _active_runs(found: list[RunEntry]) -> str:
    if not found:
        return "no run is active (flowrl ps lists those of this user on this machine)"
    shown = ", ".join(f"{Path(e.run_dir).name} (pid {e.pid})" for e in found[-MAX_NAMED:])
    return f"active runs: {shown}"


def _newest_run(live: Mapping[Path, RunEntry]) -> Path:
    """The run under the working folder that was started last."""
    here = _real_path(".")
    runs = {*_run_folders_here(), *(path for path in live if path.is_relative_to(here))}
    if not runs:
        raise UsageError(
            "last: there is no run under this folder; change to the folder in which the run was started, or name "
            f"another run; {_active_runs(list(live.values()))}"
        )
    return max(runs, key=lambda path: (_started_at(path, live), path))


def _run_folders_here() -> Iterator[Path]:
    """The run folders under the working folder, itself included, of runs that are active or have ended."""
    here = _real_path(".")
    if _is_run_folder(here):
        yield here
    yield from _run_folders_in(here, RUN_DEPTH)


def _run_folders_in(folder: Path, depth: int) -> Iterator[Path]:
    """The run folders at most `depth` levels below a folder. Hidden folders and links are not searched."""
    try:
        with os.scandir(folder) as children:
            names = [c.name for c in children if c.is_dir(follow_symlinks=False)]
    except OSError:  # a folder of another user, or one that was removed meanwhile
        return
    for name in names:
        path = folder / name
        if name.startswith("."):
            continue
        if _is_run_folder(path):
            yield path
        elif depth > 1:
            yield from _run_folders_in(path, depth - 1)


def _is_run_folder(path: Path) -> bool:
    return os.path.isfile(path / ENVIRONMENT_FILE) and os.path.isfile(path / "graph.yaml")


def _started_at(folder: Path, live: Mapping[Path, RunEntry]) -> float:
    """When a run was started, in seconds since the epoch: graph.dot is written at the start and never again."""
    if folder in live:
        return live[folder].begun_at
    first_file = folder / "graph.dot"
    return (first_file if first_file.is_file() else folder).stat().st_mtime
