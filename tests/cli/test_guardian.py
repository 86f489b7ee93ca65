"""Envs that end or block the process of `check` and `draw`: the command tells which, and ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.cli.conftest import ENV

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

CRASHING = """
import os, signal, time
import gymnasium
from gymnasium.spaces import Discrete

class Faulty(gymnasium.Env):
    observation_space = action_space = Discrete(2)
    metadata = {}

    def __init__(self, make="", close=""):
        self.faulty_close = close
        self.fail(make)

    def fail(self, how):
        if how == "abort":
            os.abort()
        if how == "exit":
            os._exit(0)
        if how == "hang":
            time.sleep(1000)

    def close(self):
        self.fail(self.faulty_close)
"""


def flowrl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flowrl", *words]
    return subprocess.run(command, cwd=folder, env=ENV, text=True, capture_output=True, timeout=60)


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    (tmp_path / "faulty_env.py").write_text(CRASHING)
    return tmp_path


def write_graph(folder: Path, kwargs: str) -> None:
    (folder / "g.yaml").write_text(
        f"extends: cartpole_dqn\nenv: {{id: 'faulty_env:Faulty', kwargs: {{{kwargs}}}}}\n"
    )


@pytest.mark.parametrize(
    ("verb", "kwargs", "message"),
    [
        ("check", "close: abort", "was killed by SIGABRT while env 'faulty_env:Faulty' was being closed"),
        ("draw", "make: abort", "was killed by SIGABRT while env 'faulty_env:Faulty' was being made"),
        ("check", "make: exit", "ended with status 0 while env 'faulty_env:Faulty' was being made"),
    ],
)  # fmt: skip
def test_an_env_that_ends_the_process_is_named(
    verb: str, kwargs: str, message: str, faulty: Path
) -> None:
    write_graph(faulty, kwargs)
    done = flowrl(faulty, verb, "g.yaml")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"flowrl: the process {message}"
    assert ("in fail" in done.stderr) == ("abort" in kwargs)  # the traceback


@pytest.mark.slow
def test_an_env_whose_close_blocks_does_not_block_check(faulty: Path) -> None:
    write_graph(faulty, "close: hang")
    assert flowrl(faulty, "check", "g.yaml").returncode in (0, 2)


def test_a_sound_graph_is_checked_as_without_a_guardian(tmp_path: Path) -> None:
    done = flowrl(tmp_path, "check", "cartpole_dqn")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cartpole_dqn: sound. ")
    assert flowrl(tmp_path, "check").returncode == 2
    assert flowrl(tmp_path, "check", "nothing_here").returncode == 2


def guard(code: str, **more: float) -> subprocess.CompletedProcess[str]:
    """Run a guarded call in a process."""
    arguments = "".join(f", {name}={value}" for name, value in more.items())
    program = (
        "import os, sys, time\nfrom flowrl.cli.guardian import run_guarded\n"
        "from flowrl.machine.user_calls import noted_call\n"
        f"def call():\n{textwrap.indent(code, '    ')}\nsys.exit(run_guarded(call{arguments}))"
    )
    words = [sys.executable, "-c", program]
    return subprocess.run(words, env=ENV, text=True, capture_output=True, timeout=60)


def test_a_call_that_takes_too_long_is_ended_with_its_traceback() -> None:
    begun_s = time.monotonic()
    done = guard("with noted_call('env 1 was being made'):\n    time.sleep(50)", max_call_s=0.1)
    assert time.monotonic() - begun_s < 40
    assert done.returncode == 1
    assert "in call" in done.stderr
    assert done.stderr.endswith("flowrl: ended after 0.1 s while env 1 was being made\n")


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("return 3", 3, ""),
        ("raise SystemExit(2)", 2, ""),
        ("os.kill(os.getpid(), 9)", 137, "flowrl: the process was killed by SIGKILL\n"),
        ("with noted_call('a call'):\n    pass\nreturn 0", 0, ""),
    ],
)
def test_the_status_of_the_call_is_that_of_the_process(code: str, status: int, error: str) -> None:
    done = guard(code)
    assert (done.returncode, done.stderr) == (status, error)


def test_the_call_ends_with_its_guardian() -> None:
    begun_s = time.monotonic()
    done = guard("os.kill(os.getppid(), 9)\ntime.sleep(50)")  # returns when the pipe is closed
    assert time.monotonic() - begun_s < 40
    assert done.returncode == -9
