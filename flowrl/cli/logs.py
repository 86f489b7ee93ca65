"""The verb `logs`: what nodes have told, of runs that go on and of runs that have ended."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from flowrl.core.errors import UsageError, spelling_hint
from flowrl.runs.folder import instance_of_log
from flowrl.runs.queries import find_folder
from flowrl.runs.registry import lives

LOOK_S = 0.2
PIECE_BYTES = 1 << 20


def logs(arguments: Namespace) -> int:
    """`flowrl logs`."""
    folder, entry = find_folder(arguments.run)
    tails = list(_tails(folder / "logs", arguments.node))
    width = max((len(t.node) for t in tails), default=0) if arguments.node is None else 0
    try:
        while True:
            goes_on = arguments.follow and entry is not None and lives(entry)
            goes_on = goes_on and entry is not None and Path(entry.socket).exists()
            for tail in tails:
                for line in tail.lines():
                    print(f"{tail.node:<{width}} | {line}" if width else line, flush=True)
            if not goes_on:
                return 0
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        return 0


class Tail:
    """A file that may grow."""

    def __init__(self, node: str, path: Path) -> None:
        self.node, self._path = node, path
        self._at = 0

    def lines(self) -> Iterator[str]:
        """The whole lines that are new."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            while line := file.readline(PIECE_BYTES):
                if not line.endswith(b"\n") and len(line) < PIECE_BYTES:
                    break  # it is being written
                self._at += len(line)
                yield line.decode(errors="replace").rstrip("\n")


def _tails(folder: Path, node: str | None) -> Iterator[Tail]:
    """The logs of one node's replicas, or of all nodes."""
    found = {instance_of_log(path): path for path in sorted(folder.glob("*.log"))}
    if node is not None:
        mine = {k: p for k, p in found.items() if k == node or k.partition("#")[0] == node}
        if not mine:
            hint = spelling_hint(node, found)
            raise UsageError(f"{node}: {folder.parent.name} has no log of it; {hint}")
        found = mine
    yield from (Tail(key, path) for key, path in found.items())
