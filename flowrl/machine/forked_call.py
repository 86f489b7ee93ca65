"""Calls a function in a fork of this process, which the function may end or block without harm to this process.

Only Linux has what this needs: a fork ends with its parent, and a fork of a process with one thread can run any code.
On macOS, libraries of the system refuse to work in a fork. Where other threads run, a fork may inherit a lock that
nobody releases.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

from flowrl.machine.child_process import end_with_forking_process, exit_text
from flowrl.machine.user_calls import NOTE_BYTES, read_note, share_notes

T = TypeVar("T")
CHECK_INTERVAL_S = 1.0
EXIT_INTERVAL_S = 0.01  # between closing its files and its end a process takes about that long
TRACEBACK_S = 1.0  # how long an aborted fork may take to print its traceback
LENGTH_BYTES = 8


class ForkEndedError(Exception):
    """The fork ended, or was ended, before the function returned. The text says how, and in which call."""


class NoForkResultError(Exception):
    """There could be no fork, or it could not send what the function returned."""


def can_fork() -> bool:
    """Return whether a fork of this process can run any code."""
    return sys.platform == "linux" and threading.active_count() == 1


def call_in_fork(call: Callable[[], T], timeout_s: float) -> T:
    """Return what `call` returns in a fork. `call` must not raise; calls that it notes are named if it is ended."""
    _flush_streams()  # otherwise both processes would write what is buffered
    notes, parent = mmap.mmap(-1, NOTE_BYTES), os.getpid()
    receiving, sending = os.pipe()
    try:
        fork = os.fork()
    except OSError as error:
        os.close(receiving)
        os.close(sending)
        raise NoForkResultError(f"this process cannot be forked: {error.strerror}") from error
    if not fork:
        os.setpgid(0, 0)  # Ctrl-C reaches the parent only, which ends the group
        end_with_forking_process(parent)
        os.close(receiving)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # it could not read from the terminal
        share_notes(notes)
        _run_fork(call, sending)
    os.close(sending)
    with suppress(OSError):
        os.setpgid(fork, fork)  # whichever process comes first
    try:
        data, is_late = _receive(receiving, fork, time.monotonic() + timeout_s)
    finally:
        os.close(receiving)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(fork, signal.SIGKILL)  # with processes that the function has left behind
        _, wait_status = os.waitpid(fork, 0)
    if data is not None:
        if not data:
            raise NoForkResultError("what the function returned cannot be sent")
        result: T = pickle.loads(data)
        return result
    note = read_note(notes)
    how = exit_text(os.waitstatus_to_exitcode(wait_status))
    how = f"was ended after {timeout_s:g} s" if is_late else how
    raise ForkEndedError(f"{how} while {note.what}" if note is not None else how)


def _run_fork(call: Callable[[], object], sending: int) -> NoReturn:
    status = 1
    try:
        faulthandler.enable(2)  # a crash prints the traceback
        result = call()
        try:
            data = pickle.dumps(result)
        except Exception:  # each class decides what it raises
            data = b""
        with os.fdopen(sending, "wb") as pipe:
            pipe.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
        status = 0
    finally:
        with suppress(OSError, ValueError):  # closed, or without a reader
            _flush_streams()
        os._exit(status)  # exit functions and objects belong to the parent


def _receive(pipe: int, fork: int, deadline: float) -> tuple[bytes | None, bool]:
    """Return what the fork sends, or None if it ends before; and whether it was ended because the deadline passed."""
    received, pipes = bytearray(), [pipe]
    while (left_s := deadline - time.monotonic()) > 0:
        # Other processes may hold the pipe when the fork has ended, or it may close the pipe and live on.
        interval_s = CHECK_INTERVAL_S if pipes else EXIT_INTERVAL_S
        readable, _, _ = select.select(pipes, [], [], min(left_s, interval_s))
        if readable:
            piece = os.read(pipe, 1 << 16)
            received += piece
            if not piece:
                pipes = []
            length = int.from_bytes(received[:LENGTH_BYTES], "big")
            if len(received) == LENGTH_BYTES + length:
                return bytes(received[LENGTH_BYTES:]), False
        elif _has_ended(fork):
            return None, False
    os.kill(fork, signal.SIGABRT)  # prints where it is
    select.select(pipes, [], [], TRACEBACK_S)
    return None, True


def _has_ended(fork: int) -> bool:
    return os.waitid(os.P_PID, fork, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _flush_streams() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what C code printed
