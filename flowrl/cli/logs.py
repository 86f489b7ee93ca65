"""The verb `logs`: the log lines of a run's nodes, also after it has ended."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from flowrl.cli.arguments import add_run
from flowrl.core.errors import UsageError, spelling_hint
from flowrl.runs.folder import instance_of_log
from flowrl.runs.registry import is_active
from flowrl.runs.run_names import find_run_folder

POLL_S = 0.2
LINE_BYTES = 1 << 20  # a longer line is printed in several


def logs_arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "node", nargs="?", metavar="NODE", help="only the lines of this node and its replicas"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="until the run ends")


def logs(arguments: Namespace) -> int:
    folder, entry = find_run_folder(arguments.run)
    readers = list(_log_readers(folder / "logs", arguments.node))
    width = max((len(log.node) for log in readers), default=0) if arguments.node is None else 0
    has_lines = False
    try:
        while True:
            active = arguments.follow and entry is not None and is_active(entry)
            for log in readers:
                for line in log.new_lines():
                    has_lines = True
                    print(f"{log.node:<{width}} | {line}" if width else line, flush=True)
            if not active:
                if not has_lines:
                    print(f"{folder.name}: its nodes have logged nothing", file=sys.stderr)
                return 0
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return 0


class LogReader:
    """Reads the new lines of a log file that may still grow."""

    def __init__(self, node: str, path: Path) -> None:
        self.node, self._path = node, path
        self._offset = 0

    def new_lines(self) -> Iterator[str]:
        """The complete lines since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while line := file.readline(LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    break  # still being written
                self._offset += len(line)
                yield line.decode(errors="replace").rstrip("\n")


def _log_readers(folder: Path, node: str | None) -> Iterator[LogReader]:
    """The logs of one node's replicas, or of all nodes."""
    found = {instance_of_log(path): path for path in sorted(folder.glob("*.log"))}
    if node is not None:
        matching = {k: p for k, p in found.items() if node in (k, k.partition("#")[0])}
        if not matching:
            hint = spelling_hint(node, found)
            raise UsageError(f"{node}: {folder.parent.name} has no log of this node; {hint}")
        found = matching
    yield from (LogReader(key, path) for key, path in found.items())
