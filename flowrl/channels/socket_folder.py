"""Where the Unix sockets of a run lie: a fresh folder that only this user may enter, gone when the run ends.

A run that is killed cannot clean up. Its folder is not locked any more: the next run sweeps it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from flowrl.core.errors import UsageError

PREFIX = "flowrl-sockets-"
LOCK = "lock"
NAME_BYTES = 16
PATH_BYTES = 107  # what the system allows for a socket's path


class SocketFolder:
    """Made and closed by the coordinator; the sites are told their addresses."""

    def __init__(self) -> None:
        sweep()
        self.path, self._lock = _made()
        while not os.fstat(self._lock).st_nlink:  # another run swept it before it was locked
            os.close(self._lock)
            self.path, self._lock = _made()

    def address(self, site: str) -> str:
        """The address for a site, however long its name."""
        return f"ipc://{self.path / hashlib.sha256(site.encode()).hexdigest()[:NAME_BYTES]}"

    def close(self) -> None:
        """Remove it, with the sockets that sites left."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made() -> tuple[Path, int]:
    """A new folder, and the open file that locks it."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
    if len(os.fsencode(path)) + 1 + NAME_BYTES > PATH_BYTES:
        path.rmdir()
        what = f"{path}: the path is too long for a socket"
        raise UsageError(f"{what}; set TMPDIR to a shorter one, as /tmp")
    lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return path, lock


def sweep() -> None:
    """Remove the folders of runs that are dead."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or in use, or gone by now
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)
