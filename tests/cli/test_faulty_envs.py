"""Envs that end or block the process that makes them: commands say which, and Python prints a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowrl.api import load
from flowrl.checks import describe_call
from flowrl.checks.describe_call import describe
from flowrl.core.errors import UsageError
from flowrl.core.facts import Facts, Surroundings
from flowrl.graph.loading import load_graph
from tests.cli.conftest import ENV, process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

CRASHING = """
import os, sys, time
import gymnasium
from gymnasium.spaces import Discrete

class Faulty(gymnasium.Env):
    observation_space = action_space = Discrete(2)
    metadata = {}

    def __init__(self, make="", close=""):
        self.faulty_close = close
        self.fail(make)

    def fail(self, how):
        if how == "interrupt":
            raise KeyboardInterrupt("no person")
        if how == "abort":
            os.abort()
        if how == "exit":
            os._exit(0)
        if how == "hang":
            print("hanging", file=sys.stderr, flush=True)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kwargs", "how"),
    [
        (["check"], "close: abort", "was killed by SIGABRT while env 'faulty_env:Faulty' was being closed"),
        (["draw"], "make: abort", "was killed by SIGABRT while env 'faulty_env:Faulty' was being made"),
        (["run", "--train-iters", "1"], "make: exit", "ended with status 0 while env 'faulty_env:Faulty' was"),
        (["check"], "make: interrupt", "describe raised KeyboardInterrupt: no person"),
    ],
)  # fmt: skip
def test_an_env_that_ends_the_process_is_a_problem_of_its_graph(
    words: list[str], kwargs: str, how: str, faulty: Path
) -> None:
    write_graph(faulty, kwargs)
    done = flowrl(faulty, *words, "g.yaml", "--set", "learner.batch=0")
    assert done.returncode == 2
    problems = done.stdout + done.stderr
    assert (
        f"nodes.envs: {'' if 'describe' in how else 'the process that made its env '}{how}"
        in problems
    )
    assert problems.count("nodes.evaluator: ") == 1  # its env is the same
    assert "'learner' has no parameter 'batch'" in problems  # another problem of the graph
    assert ("in fail" in done.stderr) == ("abort" in kwargs)  # the traceback


INVALID = """
from gymnasium import Env
from gymnasium.spaces import Box, Discrete

class Invalid(Env):
    observation_space, action_space = Box(0, 255, (2,), "uint8"), Discrete(2)

    def __init__(self, how):
        self.how = how

    def reset(self, *, seed=None, options=None):
        return [0, 0], {}

    def step(self, action):
        if self.how == "raises":
            raise KeyError("wheel")
        if self.how == "returns four":
            return [0, 0], 0.0, False, {}
        return [0.5, 300.0], 0.0, False, False, {}
"""


@pytest.mark.slow
@pytest.mark.parametrize("manager", ["env_manager", "sync_subprocess_env_manager"])
@pytest.mark.parametrize("placement", ["serial", "processes"])
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("raises", "step raised KeyError: 'wheel'"),
        ("returns four", "a step returns (observation, reward, terminated, truncated, info)"),
        ("floats", "the observation is float64[2]; its space is uint8[2]; correct what the env"),
    ],
)
def test_the_traceback_of_an_env_is_printed_if_its_own_code_raised(
    how: str, what: str, placement: str, manager: str, tmp_path: Path
) -> None:
    (tmp_path / "invalid_env.py").write_text(INVALID)
    (tmp_path / "g.yaml").write_text(
        "extends: cartpole_dqn\n"
        f"env: {{id: 'invalid_env:Invalid', kwargs: {{how: {how}}}}}\n"
        f"nodes: {{envs: {{type: {manager}, count: 1}}}}\n"
    )
    words = ("g.yaml", "--train-iters", "1", "--placement", placement, "--out", "r")
    done = flowrl(tmp_path, "run", *words)
    assert done.returncode == 1
    assert what in done.stderr.splitlines()[-1]
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    own = f'  File "{tmp_path / "invalid_env.py"}", line 16, in step'
    assert frames == ([own] if how == "raises" else [])
    assert done.stderr.count("Traceback") == len(frames)
    assert "EnvError: env 0" in (tmp_path / "r" / "error.txt").read_text()


@pytest.mark.slow
def test_an_env_whose_close_blocks_does_not_block_check(faulty: Path) -> None:
    write_graph(faulty, "close: hang")
    assert flowrl(faulty, "check", "g.yaml").returncode in (0, 2)


def test_ctrl_c_ends_a_command_whose_env_blocks(faulty: Path) -> None:
    write_graph(faulty, "make: hang")
    with process("check", "g.yaml", folder=faulty) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "hanging\n"
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=90)
    assert (running.returncode, err) == (130, "flowrl: interrupted\n")


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import faulthandler, flowrl\n{code}"]
    return subprocess.run(command, cwd=folder, env=ENV, text=True, capture_output=True, timeout=60)


@pytest.mark.slow
def test_in_python_a_crash_of_an_env_prints_a_traceback(faulty: Path) -> None:
    write_graph(faulty, "make: abort")
    done = python(faulty, "flowrl.load('g.yaml').check()")
    assert done.returncode == -signal.SIGABRT
    assert "in fail" in done.stderr


@pytest.mark.slow
def test_python_can_check_in_a_fork_and_leaves_the_crash_handler_as_it_was(faulty: Path) -> None:
    write_graph(faulty, "make: abort")
    code = (
        "found = flowrl.load('g.yaml').check(in_fork=True)\n"
        "print(faulthandler.is_enabled(), *found.problems, sep='\\n')"
    )
    enabled, *problems = python(faulty, code).stdout.splitlines()
    assert enabled == "False"
    assert "was killed by SIGABRT while env 'faulty_env:Faulty' was being made" in problems[0]


@pytest.mark.slow
def test_an_env_that_ends_the_process_is_a_problem_of_the_run_that_is_evaluated(
    faulty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(faulty)
    toy_run = load("cartpole_dqn", {"warmup": None, "buffer.batch_size": 8})
    graph = Path(toy_run.run(train_iters=1, out="r", quiet=True).run_dir) / "graph.yaml"
    text = graph.read_text().replace("id: CartPole-v1", "id: 'faulty_env:Faulty'")
    graph.write_text(f"modules: {faulty}\n{text.replace('kwargs: {}', 'kwargs: {make: abort}')}")
    done = python(
        faulty, "from flowrl.cli import main\nprint(main(['eval', 'r']))\nflowrl.policy('r')"
    )
    assert (done.returncode, done.stdout) == (1, "2\n")
    problem = "the process that made its env was killed by SIGABRT while env 'faulty_env:Faulty'"
    by_eval, _, by_policy = done.stderr.partition("GraphError: ")
    assert problem in by_eval
    assert problem in by_policy


def test_a_fork_is_refused_where_other_threads_run() -> None:
    waiting, done = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (waiting.set(), done.wait(60)))
    other.start()
    waiting.wait(60)
    try:
        with pytest.raises(UsageError, match="in_fork needs Linux and a process with one thread"):
            load("cartpole_dqn").check(in_fork=True)
    finally:
        done.set()
        other.join()


def test_a_node_whose_facts_cannot_be_sent_is_described_in_this_process() -> None:
    spec = load_graph("cartpole_dqn").graph.nodes["envs"]

    class Unsendable(spec.cls):  # type: ignore[name-defined, misc]
        @classmethod
        def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
            return Facts(service=lambda: 1)

    changed = replace(spec, cls=Unsendable)
    found = describe(changed, spec.config, Surroundings({}, {}, frozenset()), in_fork=True)
    assert found.facts is not None
    assert found.facts.service() == 1


def test_the_user_is_told_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = threading.Event()
    spec = load_graph("cartpole_dqn").graph.nodes["envs"]

    class Slow(spec.cls):  # type: ignore[name-defined, misc]
        @classmethod
        def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
            while "its env takes more than 0.001 s" not in capsys.readouterr().err:
                told.wait(0.001)
            return Facts()

    monkeypatch.setattr(describe_call, "NOTICE_S", 0.001)
    changed = replace(spec, cls=Slow)
    assert describe(changed, spec.config, Surroundings({}, {}, frozenset()), in_fork=False).facts
