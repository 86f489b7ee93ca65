"""The folder of a run's Unix sockets. Only this user may enter it, and it is removed when the run ends.

A run that is killed cannot remove its folder, but loses the lock on it. The next run removes folders without a lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from flowrl.core.errors import UsageError

FOLDER_PREFIX = "flowrl-sockets-"
LOCK_FILE = "lock"
NAME_BYTES = 16
PATH_BYTES = 107  # the system's limit for the path of a socket


class SocketFolder:
    """Created and removed by the coordinator, which sends the sites their addresses."""

    def __init__(self) -> None:
        remove_dead_folders()
        self.path, self._lock = _create_folder()
        while not os.fstat(self._lock).st_nlink:  # another run removed it before it was locked
            os.close(self._lock)
            self.path, self._lock = _create_folder()
        # It is also called at the exit of a process that was interrupted before somebody could close the folder.
        self._remove = weakref.finalize(self, _remove_folder, self.path, self._lock, os.getpid())

    def address(self, site: str, epoch: int = 0) -> str:
        """Return a short address for a site, however long its name. In each of its epochs it has another one."""
        name = f"{site}~{epoch}" if epoch else site
        return f"ipc://{self.path / hashlib.sha256(name.encode()).hexdigest()[:NAME_BYTES]}"

    def close(self) -> None:
        """Remove the folder with all sockets in it."""
        self._remove()


def _remove_folder(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _create_folder() -> tuple[Path, int]:
    """Return a new folder, and the open file that locks it."""
    path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))  # mode 0700
    if len(os.fsencode(path)) + 1 + NAME_BYTES > PATH_BYTES:
        path.rmdir()
        what = f"{path}: the path is too long for a socket"
        raise UsageError(f"{what}; set TMPDIR to a shorter path, such as /tmp")
    lock = os.open(path / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return path, lock


def remove_dead_folders() -> None:
    """Remove the folders of runs that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # it is another user's, in use, or removed already
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)
