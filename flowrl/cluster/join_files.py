"""The files by which hosts find one run: join files, and the file of a key that is made for the run."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from flowrl.channels.keys import write_key
from flowrl.cluster.join_file import (
    JOIN_FILE,
    JoinInfo,
    RunIdentity,
    earlier_identity,
    write_end,
    write_join_file,
)


class JoinFiles:
    """Writes the join files of one start of a run. `end` puts into them that the run has ended."""

    def __init__(self, run_folder: Path) -> None:
        self._of_run = run_folder / JOIN_FILE
        self.identity = _next_identity(self._of_run)
        self._written: list[Path] = []
        self._key: Path | None = None

    def make_key(self, path: Path) -> Path:
        """Make the run's own key. One of an earlier start is replaced; hosts that have it are refused."""
        path.unlink(missing_ok=True)
        write_key(path)
        self._key = path
        return path

    def write(self, info: JoinInfo, path: Path | None = None) -> None:
        """Write a join file; by default that in the run's folder."""
        path = path or self._of_run
        self._written.append(path)
        write_join_file(path, info)

    def end(self) -> None:
        """Let hosts that still look for the run know that it has ended, and remove the run's own key."""
        for path in self._written:
            with suppress(OSError):  # a folder that is gone, or a full disk
                write_end(path, self.identity)
        if self._key is not None:
            self._key.unlink(missing_ok=True)


def _next_identity(join_file: Path) -> RunIdentity:
    """The identity of this start: a run keeps its name when it is resumed."""
    before = earlier_identity(join_file)
    if before is None:
        return RunIdentity(f"{join_file.parent.name}-{secrets.token_hex(4)}", 0)
    return RunIdentity(before.run, before.epoch + 1)
