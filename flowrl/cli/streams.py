"""The standard streams: they work in every environment, and standard output holds only what the user asked for."""

from __future__ import annotations

import ctypes
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


def prepare_streams() -> None:
    """Replace closed streams by /dev/null, and let characters that a terminal lacks be replaced."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # otherwise the next file that is opened would get this number
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what envs and libraries print to standard error, whether they print from Python or from C."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # the buffer of C was filled meanwhile, too
        os.dup2(saved, 1)
        os.close(saved)
