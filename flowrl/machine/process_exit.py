"""Ends a process without the interpreter's shutdown, which takes about a second after torch was imported."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def exit_now(status: int = 0) -> NoReturn:
    """End as Python would: wait for threads that are not daemons, run exit functions, flush. Destroy no objects."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # closed, or without a reader
        sys.stdout.flush()
        sys.stderr.flush()
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)  # what C code printed
    os._exit(status)
