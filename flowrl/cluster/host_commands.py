"""Commands that are hosts: child processes of the run's machine, each of which serves as a host or reaches one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from flowrl.cluster.launcher import LaunchStatus
from flowrl.machine.child_process import exit_text

END_S = 5.0  # in which a command ends after SIGTERM
POLL_S = 0.05
LAST_BYTES = 2000  # of a log, from which the reason of an end is taken
FIRST_WAIT_S, MOST_WAIT_S = 1.0, 30.0  # before a command is started again


@dataclass(slots=True)
class HostCommand:
    """One command, which is started again when it fails."""

    name: str  # for people
    words: Sequence[str]
    log: Path
    text: bytes = field(default=b"", repr=False)  # its standard input
    keeps_input_open: bool = False  # so that it ends when this process has ended
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    # When it is started again, of the monotonic clock; None while it runs or when it is over.
    next_start_s: float | None = None
    is_over: bool = False
    why_over: str = ""  # unless it has ended well

    def start(self) -> None:
        self.next_start_s = None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal reaches the run only, which ends its hosts
            )
        assert self.process.stdin is not None
        feed = (self.process.stdin, self.text, self.keeps_input_open)
        # in a thread, as a command that connects to another machine may read it late
        threading.Thread(target=_feed, args=feed, name=self.name, daemon=True).start()

    def close_input(self) -> None:
        """Close the standard input of a command that has ended."""
        if self.process is not None and self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


class HostCommands:
    """Starts commands, starts those again that fail, and ends them."""

    def __init__(
        self,
        commands: Sequence[HostCommand],
        restarts: int,
        advice: Callable[[int, str], str] = lambda status, last_line: "",
    ) -> None:
        """A command that has failed more than `restarts` times is not started again.

        `advice` says, for an exit status and the last line of the log, what the user can do, or nothing. Where it says
        something, another start is of no use.
        """
        self._commands, self._restarts, self._advice = commands, restarts, advice

    def start(self) -> None:
        for command in self._commands:
            command.start()

    def watch(self) -> LaunchStatus:
        """Report the commands that have ended. Their hosts are gone for good only if none is left."""
        news: list[str] = []
        for command in self._commands:
            if command.next_start_s is not None and time.monotonic() >= command.next_start_s:
                command.start()
            elif command.process is not None and command.next_start_s is None:
                status = command.process.poll()
                if status is not None and not command.is_over:
                    news.append(self._after_end(command, status))
        failure = ""
        if all(command.is_over for command in self._commands):
            failure = f"no host is left; the last one: {news[-1] if news else 'it has ended'}"
        missing = "; ".join(command.why_over for command in self._commands if command.why_over)
        return LaunchStatus(failure=failure, missing=missing, news=news)

    def _after_end(self, command: HostCommand, status: int) -> str:
        command.close_input()
        what = f"{command.name} {exit_text(status)}"
        last = last_line(command.log)
        if last:
            what += f" ({last})"
        if status == 0:
            command.is_over = True
            return what
        advice = self._advice(status, last)
        if advice or command.restarts >= self._restarts:
            command.is_over = True
            command.why_over = f"{what}; {advice or f'it is not started again; see {command.log}'}"
            return command.why_over
        wait_s = min(FIRST_WAIT_S * 2**command.restarts, MOST_WAIT_S)
        command.restarts += 1
        command.next_start_s = time.monotonic() + wait_s
        return f"{what}; starting it again in {wait_s:g} s ({command.restarts} of {self._restarts})"

    def end(self) -> None:
        """End all commands: first politely, then by force."""
        running = [c.process for c in self._commands if c.process is not None]
        for process in running:
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for process in running:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        for command in self._commands:
            command.close_input()


def last_line(path: Path) -> str:
    """The last line of a log, which usually says why something has ended; nothing if there is no line."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(max(os.fstat(log.fileno()).st_size - LAST_BYTES, 0))
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _feed(stdin: IO[bytes], text: bytes, keeps_open: bool) -> None:
    with suppress(OSError, ValueError):  # the command has ended
        stdin.write(text)
        stdin.flush()
        if not keeps_open:
            stdin.close()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
