"""Queries to a run that goes on: finding the run that a user names, asking it, and reading its answer."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from flowrl.core.errors import FlowError, UsageError
from flowrl.core.plain_data import MalformedDataError
from flowrl.runs.registry import RunEntry, live_entries
from flowrl.runtime.status import RUN_STATUS, RunStatus

ANSWER_S = 5.0
ANSWER_BYTES = 64 << 20
RUNS = Path("runs")  # has the runs that were given no folder


class NoAnswerError(FlowError):
    """The process of a run is there and does not answer."""


def ask(entry: RunEntry, **question: Any) -> dict[str, Any]:
    """The answer of a run to a question, see `query_server`."""
    deadline = time.monotonic() + ANSWER_S
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(entry.socket)
            connection.sendall(json.dumps(question).encode() + b"\n")
            answer = _read_answer(connection, deadline)
        data: dict[str, Any] = json.loads(answer)
    except (OSError, ValueError) as error:
        why = error if str(error) else type(error).__name__
        what = f"{entry.run_dir}: process {entry.pid} lives, but does not answer: {why}"
        raise NoAnswerError(
            f"{what}; its code may hold Python's lock; kill {entry.pid} ends it"
        ) from error
    if "error" in data:
        raise FlowError(f"{entry.run_dir}: {data['error']}")
    return data


def _read_answer(connection: socket.socket, deadline: float) -> bytes:
    parts, size = [], 0
    while part := connection.recv(1 << 16):
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES or time.monotonic() > deadline:
            raise OSError("the answer does not end")
    return b"".join(parts)


def query_status(entry: RunEntry) -> RunStatus:
    """The status of a run."""
    try:
        return RUN_STATUS.decode(ask(entry, ask="status"))
    except MalformedDataError as error:
        raise FlowError(
            f"{entry.run_dir}: its answer cannot be read: {error}; it may run another version of flowrl"
        ) from error


# which run is named


def find_live_run(text: str) -> RunEntry:
    """The live run that a word names: a folder, its name or a unique prefix of it, a pid, or `last`."""
    found = live_entries()
    if text == "last" and found:
        return found[-1]
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
            raise UsageError(f"{text}: is ambiguous; {_listed(matches)}")
    ended = "it has ended" if (Path(path) / "summary.json").is_file() else "no such run is going on"
    raise UsageError(f"{text}: {ended}; {_listed(found)}")


def find_run_folder(text: str) -> tuple[Path, RunEntry | None]:
    """The folder of a run, live or ended, and its entry while it lives."""
    live = {Path(e.run_dir): e for e in live_entries()}
    if (Path(text) / "graph.yaml").is_file():
        path = Path(os.path.abspath(text))
        return path, live.get(path)
    in_runs = [p.absolute() for p in RUNS.glob("*") if (p / "graph.yaml").is_file()]
    every = sorted({*live, *in_runs}, key=_started_at)
    if text == "last" and every:
        return every[-1], live.get(every[-1])
    for matches in (
        [p for p in every if p.name == text or (p in live and str(live[p].pid) == text)],
        [p for p in every if p.name.startswith(text)],
    ):
        if len(matches) == 1:
            return matches[0], live.get(matches[0])
        if matches:
            raise UsageError(f"{text}: is ambiguous; {', '.join(p.name for p in matches[-8:])}")
    names = ", ".join(p.name for p in every[-8:]) or "there is none"
    raise UsageError(f"{text}: there is no such run here; runs: {names}")


def _started_at(folder: Path) -> float:
    environment = folder / "environment.json"
    return environment.stat().st_mtime if environment.is_file() else folder.stat().st_mtime


def _listed(found: list[RunEntry]) -> str:
    if not found:
        return "no run is going on (flowrl ps lists those of this user on this machine)"
    shown = ", ".join(f"{Path(e.run_dir).name} (pid {e.pid})" for e in found[-8:])
    return f"runs that go on: {shown}"
