"""Standard output is for what was asked for; what envs and libraries print goes to standard error."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def ours_alone() -> Iterator[None]:
    """Nobody else prints on standard output meanwhile, in Python or below it (games greet us in C)."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # what C has buffered was printed meanwhile, too
        os.dup2(kept, 1)
        os.close(kept)
