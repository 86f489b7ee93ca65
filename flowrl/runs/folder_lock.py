"""The lock of a run's folder: one process at a time runs it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from flowrl.core.errors import UsageError

LOCKED_WITHIN_S = 2.0  # a process that was killed may keep its files for a moment
LOCK_POLL_S = 0.05


def lock_folder(path: Path) -> int | None:
    """Lock a run's folder for this process, as long as the descriptor is open; None where folders cannot be locked."""
    folder = os.open(path, os.O_RDONLY)
    deadline = time.monotonic() + LOCKED_WITHIN_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(folder)
                raise UsageError(
                    f"{path}: another process runs it, or has just begun to; `flowrl ps` lists the active runs"
                ) from None
            time.sleep(LOCK_POLL_S)
        except OSError:  # such as on some network file systems
            os.close(folder)
            return None
