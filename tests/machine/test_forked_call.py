"""Functions called in a fork, which they may end or block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl.machine.forked_call import ForkEndedError, NoForkResultError, call_in_fork
from flowrl.machine.user_calls import noted_call

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def test_the_result_is_sent(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end="; ")
    assert call_in_fork(lambda: (os.getppid(), "x" * 300_000), 60) == (os.getpid(), "x" * 300_000)
    call_in_fork(lambda: print("within"), 60)
    assert capfd.readouterr().out == "before; within\n"


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os._exit(3), "ended with status 3"),
        (lambda: (os.closerange(3, 1000), os._exit(0)), "ended with status 0"),
    ],
)
def test_a_fork_that_ends_is_told_with_the_call_that_it_was_in(
    end: Callable[[], None], how: str
) -> None:
    def call() -> None:
        with noted_call("env 0 was being made"):
            pass
        with noted_call("env 1 was being made"):
            end()

    with pytest.raises(ForkEndedError, match=f"^{how} while env 1 was being made$"):
        call_in_fork(call, 60)
    with pytest.raises(ForkEndedError, match=f"^{how}$"):
        call_in_fork(end, 60)


def test_a_fork_that_blocks_is_ended_and_shows_where(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ForkEndedError, match=r"^was ended after 0\.05 s$"):
        call_in_fork(lambda: time.sleep(50), 0.05)
    assert "in <lambda>" in capfd.readouterr().err


def test_what_cannot_be_sent_is_said() -> None:
    with pytest.raises(NoForkResultError, match="cannot be sent"):
        call_in_fork(lambda: lambda: 1, 60)


def test_processes_that_the_function_leaves_behind_are_ended() -> None:
    def call() -> int:
        return subprocess.Popen(["sleep", "50"]).pid

    pid = call_in_fork(call, 60)
    deadline = time.monotonic() + 90
    stat = Path(f"/proc/{pid}/stat")
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline


def test_a_fork_ends_with_its_parent() -> None:
    program = (
        "import os, time\nfrom flowrl.machine.forked_call import call_in_fork\n"
        "call_in_fork(lambda: (os.kill(os.getppid(), 9), time.sleep(50)), 60)"
    )
    words = [sys.executable, "-c", program]  # returns when the pipe is closed
    assert subprocess.run(words, capture_output=True, timeout=90).returncode == -signal.SIGKILL
