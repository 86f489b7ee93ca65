"""Queries to active runs: ask a run, and read its answer."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from flowrl.core.errors import FlowError, RunError
from flowrl.core.json_text import parse_object
from flowrl.core.plain_data import MalformedDataError
from flowrl.runs.registry import RunEntry
from flowrl.runtime.status import RUN_STATUS, RunStatus

ANSWER_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 << 20
SNAPSHOT_TIMEOUT_S = 300.0
SNAPSHOT_POLL_S = 0.05


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


def save_snapshot(entry: RunEntry) -> int:
    """Let a run save a snapshot, wait until it is written, and return the completed rounds at it."""
    before = ask(entry, ask="snapshot", request=True)
    written, deadline_s = 0, 0.0
    while (found := ask(entry, ask="snapshot"))["newest"] == before["newest"]:
        if not deadline_s or found["pieces"] > written:  # a large buffer may take long
            written, deadline_s = found["pieces"], time.monotonic() + SNAPSHOT_TIMEOUT_S
        if len(found["problems"]) > len(before["problems"]):
            raise RunError(f"{entry.run_dir}: {found['problems'][-1]}")
        if time.monotonic() > deadline_s:
            raise RunError(
                f"{entry.run_dir}: no snapshot within {SNAPSHOT_TIMEOUT_S:g} s; it is saved at the end of a round: "
                "`flowrl why` says what the run is doing"
            )
        time.sleep(SNAPSHOT_POLL_S)
    return int(found["newest"])
