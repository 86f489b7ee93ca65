"""Queries to active runs: find the run that a user names, ask it, and read its answer."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from flowrl.core.errors import FlowError, UsageError
from flowrl.core.json_text import parse_object
from flowrl.core.plain_data import MalformedDataError
from flowrl.runs.folder import ENVIRONMENT_FILE, SUMMARY_FILE
from flowrl.runs.registry import RunEntry, live_entries
from flowrl.runtime.status import RUN_STATUS, RunStatus

ANSWER_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 << 20
RUNS = Path("runs")  # contains the runs that were started without --out
MAX_NAMED = 8  # runs in an error message


class NoAnswerError(FlowError):
    """The process of a run exists, but does not answer."""


def ask(entry: RunEntry, **query: Any) -> dict[str, Any]:
    """The answer of a run to a query (see `Run.answer`)."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.connect(entry.socket)
            connection.sendall(json.dumps(query).encode() + b"\n")
            answer = _read_answer(connection, deadline)
        data = parse_object(answer)
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
        if size > MAX_ANSWER_BYTES or time.monotonic() > deadline:
            raise OSError("the answer does not end")
    return b"".join(parts)


def query_status(entry: RunEntry) -> RunStatus:
    try:
        return RUN_STATUS.decode(ask(entry, ask="status"))
    except MalformedDataError as error:
        raise FlowError(
            f"{entry.run_dir}: its answer cannot be read: {error}; it may run another version of flowrl"
        ) from error


# which run is named


def find_live_run(text: str) -> RunEntry:
    """The active run that a word names: a folder, its name or a unique prefix of it, a pid, or `last`."""
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
            raise UsageError(f"{text}: is ambiguous; {_active_runs(matches)}")
    has_ended = (Path(path) / SUMMARY_FILE).is_file()
    what = "the run has ended" if has_ended else "there is no such active run"
    raise UsageError(f"{text}: {what}; {_active_runs(found)}")


def _active_runs(found: list[RunEntry]) -> str:
    if not found:
        return "no run is active (flowrl ps lists those of this user on this machine)"
    shown = ", ".join(f"{Path(e.run_dir).name} (pid {e.pid})" for e in found[-MAX_NAMED:])
    return f"active runs: {shown}"


def find_run_folder(text: str) -> tuple[Path, RunEntry | None]:
    """The folder of a run, and its entry if it is active."""
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
            names = ", ".join(p.name for p in matches[-MAX_NAMED:])
            raise UsageError(f"{text}: is ambiguous; {names}")
    names = ", ".join(p.name for p in every[-MAX_NAMED:]) or "there is none"
    raise UsageError(f"{text}: there is no such run here; runs: {names}")


def _started_at(folder: Path) -> float:
    environment = folder / ENVIRONMENT_FILE
    return environment.stat().st_mtime if environment.is_file() else folder.stat().st_mtime
