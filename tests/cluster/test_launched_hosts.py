"""What starts the hosts of a run: commands that are started again, and launchers in a thread of their own."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowrl.cluster.host_commands import HostCommand, HostCommands, last_line
from flowrl.cluster.join_file import JoinInfo, RunIdentity
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.core.errors import FlowError, GraphError, UsageError
from flowrl.graph.launch import launcher_label, load_launch

SOON_S = 60.0


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# commands


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.cluster.host_commands.FIRST_WAIT_S", 0.01)


def python(tmp_path: Path, code: str, text: bytes = b"") -> HostCommand:
    return HostCommand("host process 0", [sys.executable, "-c", code], tmp_path / "log", text)


def watched(commands: HostCommands, until_failure: bool = True) -> tuple[list[str], str]:
    """The news of commands until they have failed."""
    news: list[str] = []
    failure = ""

    def is_over() -> bool:
        nonlocal failure
        status = commands.watch()
        news.extend(status.news)
        failure = status.failure
        return bool(failure)

    until(is_over)
    return news, failure


@pytest.mark.usefixtures("impatient")
def test_a_command_that_fails_is_started_again_so_often(tmp_path: Path) -> None:
    command = python(tmp_path, "import sys; print('no room'); sys.exit(3)")
    commands = HostCommands([command], restarts=2)
    commands.start()
    news, failure = watched(commands)
    assert news == [
        "host process 0 ended with status 3 (no room); starting it again in 0.01 s (1 of 2)",
        "host process 0 ended with status 3 (no room); starting it again in 0.02 s (2 of 2)",
        f"host process 0 ended with status 3 (no room); it is not started again; see {command.log}",
    ]
    assert failure.startswith("no host is left; the last one: host process 0 ended with status 3")
    commands.end()


@pytest.mark.usefixtures("impatient")
def test_a_command_that_ends_well_is_not_started_again(tmp_path: Path) -> None:
    command = python(tmp_path, "import sys; print(sys.stdin.read())", b"a text")
    commands = HostCommands([command], restarts=2)
    commands.start()
    news, _ = watched(commands)
    assert news == ["host process 0 ended with status 0 (a text)"]
    commands.end()


def test_a_command_that_ignores_sigterm_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.cluster.host_commands.END_S", 0.1)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    command = python(tmp_path, code)
    commands = HostCommands([command], restarts=0)
    commands.start()
    until(lambda: command.log.read_bytes())
    commands.end()
    assert command.process is not None
    assert command.process.returncode == -9


@pytest.mark.usefixtures("impatient")
def test_a_command_for_which_there_is_advice_is_not_started_again(tmp_path: Path) -> None:
    lost = python(tmp_path, "import sys; sys.exit('no key')")
    waits = HostCommand("host process 1", ["sleep", "60"], tmp_path / "log2")
    advice = {(1, "no key"): "make one"}
    commands = HostCommands([lost, waits], 2, lambda *end: advice.get(end, ""))
    commands.start()
    until(lambda: commands.watch().missing)
    status = commands.watch()
    assert status.missing == "host process 0 ended with status 1 (no key); make one"
    assert status.failure == ""
    commands.end()


def test_a_command_whose_input_stays_open_notices_the_end(tmp_path: Path) -> None:
    code = "import sys; print(sys.stdin.readline(), flush=True); sys.stdin.read(); print('end')"
    command = python(tmp_path, code, b"a text\n")
    command.keeps_input_open = True
    command.start()
    until(lambda: b"a text" in command.log.read_bytes())
    assert command.process is not None
    assert command.process.poll() is None
    command.close_input()
    assert command.process.wait(SOON_S) == 0
    assert last_line(command.log) == "end"


# launchers in their thread


class ToyLauncher(Launcher):
    """Does what the test says, and notes what is called."""

    host_count = 1

    def __init__(self, *statuses: LaunchStatus, start_error: Exception | None = None) -> None:
        super().__init__()
        self.statuses, self.start_error = list(statuses), start_error
        self.threads: set[str] = set()
        self.is_ended = False

    def start(self, order: HostOrder) -> None:
        self.threads.add(threading.current_thread().name)
        if self.start_error is not None:
            raise self.start_error

    def watch(self) -> LaunchStatus:
        self.threads.add(threading.current_thread().name)
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def end(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.is_ended = True


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.cluster.launched_hosts.WATCH_S", 0.01)


def launched(launcher: Launcher, tmp_path: Path) -> LaunchedHosts:
    info = JoinInfo("tcp://127.0.0.1:1", RunIdentity("r", 0))
    order = HostOrder(info, tmp_path / "join.json", tmp_path, "toy", "run", ())
    return LaunchedHosts({"toy": (launcher, order)})


def test_a_queued_job_is_told_once_and_waited_for(tmp_path: Path) -> None:
    queued = LaunchStatus(waiting="job 7 is queued")
    toy = ToyLauncher(queued, queued, queued, LaunchStatus(news=["all are there"]), LaunchStatus())
    hosts = launched(toy, tmp_path)
    assert hosts.is_waiting
    until(lambda: not hosts.is_waiting)
    assert hosts.take_news() == ["launch toy: job 7 is queued", "launch toy: all are there"]
    hosts.end()
    assert toy.is_ended
    assert toy.threads == {"launchers"}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FlowError("sbatch: invalid partition"), "launch toy: sbatch: invalid partition"),
        (FileNotFoundError(2, "No such file", "sbatch"), "launch toy: sbatch: No such file"),
    ],
)
def test_a_launcher_that_cannot_start_says_why(tmp_path: Path, error: Exception, text: str) -> None:
    hosts = launched(ToyLauncher(LaunchStatus(), start_error=error), tmp_path)
    until(lambda: hosts.failure)
    assert hosts.failure == text
    assert not hosts.is_waiting
    hosts.end()


def test_hosts_that_will_not_come_are_named_with_their_launcher(tmp_path: Path) -> None:
    hosts = launched(ToyLauncher(LaunchStatus(missing="b has no Python")), tmp_path)
    until(lambda: hosts.missing)
    assert (hosts.missing, hosts.failure) == ("launch toy: b has no Python", "")
    hosts.end()


# what is given as `launch`


def test_a_launcher_is_given_by_its_type_as_yaml_as_data_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("type: local\nhosts: 2\n")
    given = ["local", "{type: local, hosts: 2}", {"type": "local", "hosts": 2}, str(file), file]
    for one in given:
        (spec,) = load_launch(one)
        assert (launcher_label(spec), spec.config.hosts) == ("local", 2)


def test_several_launchers_need_labels() -> None:
    two = [{"type": "local", "label": "a"}, {"type": "local", "label": "b", "hosts": 1}]
    assert [launcher_label(spec) for spec in load_launch(two)] == ["a", "b"]
    with pytest.raises(GraphError, match="two launchers have the label 'local'"):
        load_launch(["local", "local"])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("lokal", "--launch: unknown launcher type 'lokal'; did you mean 'local'?"),
        ("{type: local, host: 2}", "--launch: unknown key 'host'; did you mean 'hosts'?"),
        ("{type: local, hosts: 0}", "--launch.hosts is 0"),
        ("{type: local, label: main}", "--launch.label: 'main' is a place of this machine"),
        ("{type: local, rejoin: soon}", "--launch.rejoin: 'soon' is no time"),
        ("[]", "it names no launcher"),
        ("nothing.yaml", "--launch nothing.yaml: there is no such file"),
        (5, "launch is 5; expected a YAML file"),
    ],
)
def test_wrong_launchers_are_refused(given: Any, text: str) -> None:
    with pytest.raises((GraphError, UsageError)) as error:
        load_launch(given)
    assert text in str(error.value)
