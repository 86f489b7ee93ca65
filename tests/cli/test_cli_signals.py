"""Ctrl-C and SIGTERM: the first takes the next cut, the second stops at once. A closed terminal takes a cut, too."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.cli.conftest import ENV, Called, one_line, process, python, wait_until, write

Flowrl = Callable[..., Called]


def signalling(folder: Path, signals: list[str], **config: Any) -> None:
    """`s.yaml`: a node sends these signals to its process in its firing 3."""
    node = {"type": "SignalSender", "firing": 3, "signals": signals, **config}
    write(folder / "s.yaml", {"a": node}, ["c -> a"], limits={"train_iters": 9})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_first_signal_takes_the_next_cut_and_says_how_to_repeat_it(
    name: str, flowrl: Flowrl, folder: Path
) -> None:
    signalling(folder, [name])
    status, out, err = flowrl("run", "s.yaml", "--out", "r")
    assert status == 130
    assert err == "stopping after this round; Ctrl-C again stops at once\n"
    assert f"interrupted: {name}\n" in out
    assert "to repeat: flowrl run r/graph.yaml --train-iters 4\n" in out
    summary = json.loads(Path("r/summary.json").read_text())
    assert (summary["status"], summary["train_iters"]) == ("interrupted", 4)
    signalling(folder, [])
    again = one_line(flowrl("run", "s.yaml", "--train-iters", "4", "--json")[1])
    assert again["digest"] == summary["digest"]


def test_a_second_signal_stops_at_once(flowrl: Flowrl, folder: Path) -> None:
    signalling(folder, ["SIGINT", "SIGINT"])
    status, out, _ = flowrl("run", "s.yaml", "--out", "r", "--json")
    summary = one_line(out)
    assert (status, summary["status"], summary["why"]) == (130, "interrupted", "stopped at once")
    assert (summary["train_iters"], summary["digest"]) == (3, "")
    assert json.loads(Path("r/summary.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize("signals", [["SIGHUP", "SIGHUP"], ["SIGTERM", "SIGHUP"]])
def test_a_hangup_never_stops_at_once(signals: list[str], flowrl: Flowrl, folder: Path) -> None:
    signalling(folder, signals)
    status, out, _ = flowrl("run", "s.yaml", "--json")
    summary = one_line(out)
    assert (status, summary["why"], summary["train_iters"]) == (130, signals[0], 4)


def test_an_ignored_hangup_changes_nothing(flowrl: Flowrl, folder: Path) -> None:
    signalling(folder, ["SIGHUP"])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        status, out, _ = flowrl("run", "s.yaml", "--json")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (status, one_line(out)["status"]) == (0, "finished")


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_ends_at_its_next_cut(folder: Path) -> None:
    write(folder / "long.yaml")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable, [sys.executable, "-m", "flowrl", "run", "long.yaml", "--out", "r"], ENV
        )
    shown = b""
    while b"train iters" not in shown:  # the live table
        shown += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    summary = json.loads((folder / "r" / "summary.json").read_text())
    assert (summary["status"], summary["why"]) == ("interrupted", "SIGHUP")
    assert summary["digest"]


def test_a_signal_after_the_last_cut_changes_nothing(flowrl: Flowrl, folder: Path) -> None:
    signalling(folder, ["SIGINT"])
    status, out, _ = flowrl("run", "s.yaml", "--train-iters", "4", "--json")
    assert (status, one_line(out)["status"]) == (0, "finished")


def test_signals_are_handled_as_before_when_a_run_has_ended(flowrl: Flowrl, folder: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(n) for n in numbers]
    signalling(folder, ["SIGINT"])
    flowrl("run", "s.yaml")
    assert [signal.getsignal(n) for n in numbers] == before


def test_ctrl_c_in_a_process_cuts_it(folder: Path) -> None:
    write(folder / "long.yaml")
    with process("run", "long.yaml", "--out", "r", folder=folder) as running:
        assert running.stdout is not None
        while "train iters" not in running.stdout.readline():
            pass
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=90)
    assert running.returncode == 130
    assert err == "stopping after this round; Ctrl-C again stops at once\n"
    assert "to repeat: flowrl run r/graph.yaml --train-iters " in out


@pytest.mark.slow
@pytest.mark.parametrize("again", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_twice_ends_a_process_whose_node_hangs(again: signal.Signals, folder: Path) -> None:
    signalling(folder, [], hangs=True)
    with process("run", "s.yaml", "--out", "r", folder=folder) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        while running.stdout.readline() != "the node hangs\n":
            pass
        running.send_signal(signal.SIGINT)
        assert running.stderr.readline().startswith("stopping after this round")
        running.send_signal(again)
        out, err = running.communicate(timeout=90)
    assert running.returncode == 130
    assert "interrupted: stopped at once\n" in out
    assert err == ""
    assert json.loads((folder / "r" / "summary.json").read_text())["status"] == "interrupted"


SLOW_SETUP = """
import time
from pathlib import Path
from flowrl import Batch, In, Node

class Slow(Node):
    data = In("samples")

    def setup(self) -> None:
        Path("r/making").touch()
        time.sleep(20)

    def fire(self, data: Batch) -> None:
        return None
"""


@pytest.mark.slow
def test_who_does_not_wait_for_sites_that_start_leaves_no_sockets(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "slow_setup.py").write_text(SLOW_SETUP)
    write(folder / "slow.yaml", {"a": {"type": "slow_setup:Slow"}}, ["c -> a"])
    words = ("run", "slow.yaml", "--placement", "a=process", "--out", "r")
    with TemporaryDirectory() as place:  # a short path: pytest's are too long for sockets
        monkeypatch.setitem(ENV, "TMPDIR", place)
        with process(*words, folder=folder) as running:
            assert running.stderr is not None
            wait_until((folder / "r" / "making").exists)
            running.send_signal(signal.SIGINT)
            assert running.stderr.readline().startswith("stopping after this round")
            [sockets] = Path(place).glob("flowrl-sockets-*")
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=90)
        assert (running.returncode, err) == (130, "")
        assert "interrupted: stopped before the first firing\n" in out
        assert not sockets.exists()


SIGNAL_DURING_IMPORTS = """
import os, signal, sys

class Signaller:
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.{name})

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
sys.meta_path.insert(0, Signaller())
sys.argv = ["flowrl", "run", "g.yaml"]
from flowrl.cli import command
command()
"""


@pytest.mark.parametrize(
    ("name", "by", "module"),
    [
        ("SIGINT", "", "flowrl.cli.streams"),
        ("SIGINT", "", "numpy"),
        ("SIGTERM", " by SIGTERM", "numpy"),
        ("SIGHUP", " by SIGHUP", "numpy"),
    ],
)
def test_a_signal_during_the_imports_ends_the_command_in_words(
    name: str, by: str, module: str, folder: Path
) -> None:
    code = SIGNAL_DURING_IMPORTS.format(name=name, module=module)
    with python("-c", code, folder=folder, stderr=subprocess.PIPE) as running:
        _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (130, f"flowrl: interrupted{by}\n")


@pytest.mark.parametrize(("name", "by"), [("SIGINT", ""), ("SIGTERM", " by SIGTERM")])
@pytest.mark.parametrize("words", [("check", "--twice"), ("chaos", "--kill", "c@1h")])
def test_a_signal_ends_a_command_that_compares_runs(
    words: tuple[str, ...], name: str, by: str, flowrl: Flowrl, folder: Path
) -> None:
    """The run that was stopped is another one than those with which it would be compared."""
    signalling(folder, [name])
    verb, *more = words
    status, out, err = flowrl(verb, "s.yaml", *more, "--train-iters", "9")
    assert status == 130
    assert err.endswith(f"flowrl: interrupted{by}\n")
    assert "different" not in out
