"""A run can be asked: a socket beside its registry entry, and a thread that answers.

A question is a line of JSON, and so is the answer. Nothing that happens here can stop the run or slow it down.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowrl.runs.registry import (
    RegistryUnavailable,
    RunEntry,
    new_entry_paths,
    process_start_time,
    remove_entry,
    runtime_folder,
    write_entry,
)

QUESTION_BYTES = 4096
QUESTION_TIMEOUT_S = 2.0  # with one who asks and does not go on
TRIES = 3  # at what changes while it is looked at

AnswerQuestion = Callable[[Mapping[str, Any]], dict[str, Any]]


class QueryServer:
    """The socket of one run, and its thread."""

    def __init__(self, graph: str, placement: str, run_dir: Path, answer: AnswerQuestion) -> None:
        """Begin to answer; `NoRegistry` where that is not possible."""
        self._answer = answer
        self._entry, path = new_entry_paths(runtime_folder())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(path))
            self._socket.listen(8)
            entry = RunEntry(os.getpid(), process_start_time(os.getpid()) or "?", time.time(), graph, placement,
                          str(run_dir.absolute()), str(path))  # fmt: skip
            write_entry(self._entry, entry)
        except (OSError, RegistryUnavailable) as error:
            self._socket.close()
            remove_entry(self._entry)
            raise RegistryUnavailable(str(error)) from error
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # it was closed
            with connection, contextlib.suppress(OSError):  # who asked may be gone
                connection.settimeout(QUESTION_TIMEOUT_S)
                connection.sendall(self._reply(connection) + b"\n")

    def _reply(self, connection: socket.socket) -> bytes:
        """The answer to what comes; what is not a question is told so."""
        deadline, asked = time.monotonic() + QUESTION_TIMEOUT_S, b""
        while not asked.endswith(b"\n"):
            part = connection.recv(QUESTION_BYTES + 1 - len(asked))
            asked += part
            if not part or len(asked) > QUESTION_BYTES or time.monotonic() > deadline:
                break
        try:
            question = json.loads(asked)
            if not isinstance(question, dict):
                raise ValueError("not an object")
        except ValueError:
            return json.dumps({"error": "expected a line of JSON: an object"}).encode()
        return json.dumps(self._tried(question)).encode()

    def _tried(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """A run goes on while it is looked at, and then some of it may have changed under the eye."""
        for _ in range(TRIES):
            try:
                return self._answer(question)
            except Exception as error:  # the asker is told: the run is none of its business
                told = {"error": f"{type(error).__name__}: {error}"}
        return told

    def close(self) -> None:
        """Answer no more."""
        remove_entry(self._entry)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()


@contextmanager
def answering_queries(
    graph: str, placement: str, run_dir: Path, answer: AnswerQuestion, warn: Callable[[str], None]
) -> Iterator[None]:
    """Meanwhile the run can be asked; where that is not possible, it is told once."""
    try:
        control = QueryServer(graph, placement, run_dir, answer)
    except RegistryUnavailable as error:
        warn(f"flowrl ps, top, why and stop will not find this run: {error}")
        yield
        return
    try:
        yield
    finally:
        control.close()
