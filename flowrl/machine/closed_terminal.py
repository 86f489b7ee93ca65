"""What a process does when its terminal is closed, of which SIGHUP tells it."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress


def obeys_hangup() -> bool:
    """Whether SIGHUP shall end this process. Under `nohup` it is ignored."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def leave_closed_terminal() -> None:
    """Replace the standard streams of a closed terminal by /dev/null, because writing to it fails."""
    for number in range(3):
        with suppress(OSError):
            is_device = stat.S_ISCHR(os.fstat(number).st_mode)
            if is_device and not os.isatty(number):  # neither is a terminal that is closed
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, number)
                os.close(null)
