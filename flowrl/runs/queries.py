"""Asking a run: finding the one that is meant, and what it answers."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from flowrl.core.errors import FlowError, UsageError
from flowrl.runs.registry import Entry, entries
from flowrl.runs.run_status import Look

ANSWER_S = 5.0
ANSWER_BYTES = 64 << 20
RUNS = Path("runs")  # where runs lie that were given no folder


class Silent(FlowError):
    """A run lives and does not answer."""


def ask(entry: Entry, **question: Any) -> dict[str, Any]:
    """What a run answers."""
    deadline = time.monotonic() + ANSWER_S
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(entry.socket)
            connection.sendall(json.dumps(question).encode() + b"\n")
            answer = _line(connection, deadline)
        told: dict[str, Any] = json.loads(answer)
    except (OSError, ValueError) as error:
        why = error if str(error) else type(error).__name__
        what = f"{entry.run_dir}: process {entry.pid} lives, but does not answer: {why}"
        raise Silent(
            f"{what}; its code may hold Python's lock; kill {entry.pid} ends it"
        ) from error
    if "error" in told:
        raise FlowError(f"{entry.run_dir}: {told['error']}")
    return told


def _line(connection: socket.socket, deadline: float) -> bytes:
    parts, size = [], 0
    while part := connection.recv(1 << 16):
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES or time.monotonic() > deadline:
            raise OSError("the answer does not end")
    return b"".join(parts)


def look(entry: Entry) -> Look:
    """A look at a run."""
    return ask(entry, ask="look")


# which run is meant


def find_live(text: str) -> Entry:
    """The live run that a word means: a folder, its name or a beginning of it, a pid, or `last`."""
    found = entries()
    if text == "last" and found:
        return found[-1]
    here = os.path.abspath(text)
    for fits in (
        [e for e in found if e.run_dir == here],
        [e for e in found if str(e.pid) == text],
        [e for e in found if Path(e.run_dir).name == text],
        [e for e in found if Path(e.run_dir).name.startswith(text)],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise UsageError(f"{text}: which one? {_list(fits)}")
    ended = "it has ended" if (Path(here) / "summary.json").is_file() else "no such run is going on"
    raise UsageError(f"{text}: {ended}; {_list(found)}")


def find_folder(text: str) -> tuple[Path, Entry | None]:
    """The folder of a run, live or ended, and its entry while it lives."""
    live = {Path(e.run_dir): e for e in entries()}
    if (Path(text) / "graph.yaml").is_file():
        path = Path(os.path.abspath(text))
        return path, live.get(path)
    kept = [p.absolute() for p in RUNS.glob("*") if (p / "graph.yaml").is_file()]
    every = sorted({*live, *kept}, key=_begun)
    if text == "last" and every:
        return every[-1], live.get(every[-1])
    for fits in (
        [p for p in every if p.name == text or (p in live and str(live[p].pid) == text)],
        [p for p in every if p.name.startswith(text)],
    ):
        if len(fits) == 1:
            return fits[0], live.get(fits[0])
        if fits:
            raise UsageError(f"{text}: which one? {', '.join(p.name for p in fits[-8:])}")
    names = ", ".join(p.name for p in every[-8:]) or "there is none"
    raise UsageError(f"{text}: there is no such run here; runs: {names}")


def _begun(folder: Path) -> float:
    about = folder / "environment.json"
    return about.stat().st_mtime if about.is_file() else folder.stat().st_mtime


def _list(found: list[Entry]) -> str:
    if not found:
        return "no run is going on (flowrl ps lists those of this user on this machine)"
    told = ", ".join(f"{Path(e.run_dir).name} (pid {e.pid})" for e in found[-8:])
    return f"runs that go on: {told}"
