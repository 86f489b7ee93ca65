"""Processes of this machine by their ids: whether they exist, and when they began."""

from __future__ import annotations

import os
from pathlib import Path

ENDED = "ZX"  # states in /proc/PID/stat


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
    return True


def process_start_time(pid: int) -> str | None:
    """When a process began, in the system's units, or "?" where the system does not say; None if it does not exist.

    One that has ended, and for which its parent has not waited, does not exist: it may stay so for as long as the
    parent lives, such as in a container whose first process waits for nobody.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        state, *fields = text.rpartition(")")[2].split()
        return None if state in ENDED else fields[18]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    return "?" if process_exists(pid) else None
