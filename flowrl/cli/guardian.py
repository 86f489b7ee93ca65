"""The guardian of a verb that makes envs: they may end or block their process, and the user must be told which one did.

The verb runs in a fork, which is made before anything but the command line is imported, so it costs milliseconds. The
process that the user started waits for it, and says in words how it ended. This needs Linux, where a fork can be made
to end with its parent.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Callable

from flowrl.machine.user_calls import NOTE_BYTES, read_note, share_notes

MAX_CALL_S = 300.0  # of one call of a user's code; simulators take minutes to start
CHECK_INTERVAL_S = 1.0
TRACEBACK_S = 1.0  # how long an aborted process may take to print its traceback


def run_guarded(call: Callable[[], int], max_call_s: float = MAX_CALL_S) -> int:
    """Run `call`, which returns an exit status, in a fork, and return the status."""
    from flowrl.machine.child_process import end_with_forking_process, exit_text

    memory, parent = mmap.mmap(-1, NOTE_BYTES), os.getpid()
    fork_lives, held_by_fork = os.pipe()
    fork = os.fork()
    if not fork:
        os.close(fork_lives)
        end_with_forking_process(parent)
        share_notes(memory)
        _run_fork(call)
    os.close(held_by_fork)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the fork, too
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(fork, number))
    is_late = not _wait(fork, fork_lives, memory, max_call_s)
    _, wait_status = os.waitpid(fork, 0)
    status, note = os.waitstatus_to_exitcode(wait_status), read_note(memory)
    if is_late and note is not None:
        print(f"flowrl: ended after {max_call_s:g} s while {note.what}", file=sys.stderr)
        return 1
    if note is not None:
        text = f"flowrl: the process {exit_text(status)} while {note.what}"
        print(text, file=sys.stderr)
        return 1
    if status < 0:
        print(f"flowrl: the process {exit_text(status)}", file=sys.stderr)
        return 128 - status
    return status


def _run_fork(call: Callable[[], int]) -> None:
    import faulthandler

    from flowrl.machine.process_exit import exit_now

    faulthandler.enable(2)  # a crash prints the traceback
    try:
        status = call()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    exit_now(status)


def _wait(fork: int, fork_lives: int, memory: mmap.mmap, max_call_s: float) -> bool:
    """Wait until the fork ends; end it, and return false, if one call takes too long."""
    interval_s = min(CHECK_INTERVAL_S, max_call_s / 2)
    while True:
        readable, _, _ = select.select([fork_lives], [], [], interval_s)
        # A process that an env started may hold the pipe.
        if readable or os.waitid(os.P_PID, fork, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        note = read_note(memory)
        if note is not None and time.monotonic() - note.begun_s > max_call_s:
            os.kill(fork, signal.SIGABRT)  # prints where it is
            select.select([fork_lives], [], [], TRACEBACK_S)
            os.kill(fork, signal.SIGKILL)
            return False
