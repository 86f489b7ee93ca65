"""Answers queries to a run, on a socket beside its registry entry and in a thread of its own.

A query and its answer are one line of JSON each. The thread can neither stop the run nor slow it down.
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

from flowrl.core.json_text import parse_object
from flowrl.machine.processes import process_start_time
from flowrl.runs.registry import (
    RegistryUnavailable,
    RunEntry,
    new_entry_paths,
    remove_entry,
    runtime_folder,
    write_entry,
)

QUERY_BYTES = 4096
QUERY_TIMEOUT_S = 2.0  # for a client that has connected, but does not finish its query
TRIES = 3  # because the run may change what is being read

AnswerQuery = Callable[[Mapping[str, Any]], dict[str, Any]]


class QueryServer:
    """The socket of one run, and the thread that serves it."""

    def __init__(self, graph: str, placement: str, run_dir: Path, answer: AnswerQuery) -> None:
        self._answer = answer
        self._entry, path = new_entry_paths(runtime_folder())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        entry = RunEntry(
            pid=os.getpid(),
            process_start_time=process_start_time(os.getpid()) or "?",
            begun_at=time.time(),
            graph=graph,
            placement=placement,
            run_dir=str(run_dir.absolute()),
            socket=str(path),
        )
        try:
            self._socket.bind(str(path))
            self._socket.listen(8)
            write_entry(self._entry, entry)
        except (OSError, RegistryUnavailable) as error:
            self._socket.close()
            remove_entry(self._entry)
            raise RegistryUnavailable(str(error)) from error
        self._thread = threading.Thread(target=self._serve, name="queries", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # the socket was closed
            with connection, contextlib.suppress(OSError):  # the client may be gone
                connection.settimeout(QUERY_TIMEOUT_S)
                connection.sendall(json.dumps(self._reply(connection)).encode() + b"\n")

    def _reply(self, connection: socket.socket) -> dict[str, Any]:
        """Read a query and return its answer, or an error if it is malformed."""
        deadline, line = time.monotonic() + QUERY_TIMEOUT_S, b""
        while not line.endswith(b"\n"):
            part = connection.recv(QUERY_BYTES + 1 - len(line))
            line += part
            if not part or len(line) > QUERY_BYTES or time.monotonic() > deadline:
                break
        try:
            query = parse_object(line)
        except ValueError:
            return {"error": "expected a line of JSON: an object"}
        for _ in range(TRIES):
            try:
                return self._answer(query)
            except Exception as error:  # goes to the client, as it must not affect the run
                answer = {"error": f"{type(error).__name__}: {error}"}
        return answer

    def close(self) -> None:
        """Accept no more queries. The answer to the last one is sent first: it may be what ended the run."""
        remove_entry(self._entry)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join(QUERY_TIMEOUT_S)
        self._socket.close()


@contextmanager
def answering_queries(
    graph: str, placement: str, run_dir: Path, answer: AnswerQuery, warn: Callable[[str], None]
) -> Iterator[None]:
    """Answer queries meanwhile. Where that is not possible, `warn` is called once."""
    try:
        server = QueryServer(graph, placement, run_dir, answer)
    except RegistryUnavailable as error:
        warn(f"flowrl ps, top, why, peek and stop will not find this run: {error}")
        yield
        return
    try:
        yield
    finally:
        server.close()
