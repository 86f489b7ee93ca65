"""The socket on which a run can be asked, and the folder where it is found."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flowrl.checks.check import check
from flowrl.core.errors import FlowError, UsageError
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.queries import ask, find_live_run, find_run_folder, query_status
from flowrl.runs.query_server import QUESTION_BYTES
from flowrl.runs.registry import RunEntry, live_entries, runtime_folder, write_entry
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from tests.runs.going import pair, running_in_a_thread, wait_for_status


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of this test's own: others may have runs of their own going on."""
    with TemporaryDirectory(prefix="flowrl-test-", dir="/tmp") as short:  # sockets want short paths
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        folder = runtime_folder()
        assert folder.parent == Path(short)
        yield folder


def sent(entry: RunEntry, text: bytes) -> dict[str, str]:
    """What a run answers to anything."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(entry.socket)
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return dict(json.loads(connection.makefile().read()))


def test_a_run_is_found_while_it_goes_on(tmp_path: Path) -> None:
    with running_in_a_thread(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        assert (run.pid, run.graph, run.placement) == (
            os.getpid(),
            query_status(run).graph,
            "serial",
        )
        assert find_live_run(str(tmp_path / "r")) == run
        assert find_live_run("last") == run
        assert find_run_folder(str(tmp_path / "r")) == (tmp_path / "r", run)
        assert Path(run.socket).parent.stat().st_mode & 0o777 == 0o700
    assert run not in live_entries()
    assert not Path(run.socket).exists()
    with pytest.raises(UsageError, match=f"{tmp_path}/r: it has ended; no run is going on"):
        find_live_run(str(tmp_path / "r"))


def test_a_run_is_named_by_its_folder_a_unique_prefix_or_its_pid(tmp_path: Path) -> None:
    slow = pair(a={"each_s": 0.01})
    with (
        running_in_a_thread(slow, tmp_path / "one-1") as one,
        running_in_a_thread(slow, tmp_path / "one-2") as two,
    ):
        assert find_live_run("one-2") == find_live_run("last") == two
        assert find_live_run("one-1") == one
        for word in ("one", str(os.getpid())):
            with pytest.raises(UsageError, match=r"is ambiguous; runs that go on: one-1 \(pid"):
                find_live_run(word)
        with pytest.raises(UsageError, match="zwei: no such run is going on; runs that go on: "):
            find_live_run("zwei")


@pytest.mark.parametrize(
    "question", [b"", b"\n", b"[]\n", b"{\n", b"\xff\xfe\n", b"x" * (2 * QUESTION_BYTES)]
)
def test_anything_but_a_question_is_refused_without_harm(question: bytes, tmp_path: Path) -> None:
    with running_in_a_thread(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        try:
            assert sent(run, question) == {"error": "expected a line of JSON: an object"}
        except (ConnectionError, BrokenPipeError):
            assert len(question) > QUESTION_BYTES  # it hung up before all was said
        assert query_status(run).status in ("starting", "running")


def test_an_unknown_question_is_refused(tmp_path: Path) -> None:
    told = pytest.raises(FlowError, match="unknown question 'dance'; known: status, stop")
    with running_in_a_thread(pair(a={"each_s": 0.01}), tmp_path / "r") as run, told:
        ask(run, ask="dance")


def test_a_client_that_sends_nothing_delays_others_for_a_moment_only(tmp_path: Path) -> None:
    with (
        running_in_a_thread(pair(a={"each_s": 0.01}), tmp_path / "r") as run,
        socket.socket(socket.AF_UNIX) as silent,
    ):
        silent.connect(run.socket)
        assert query_status(run).graph == run.graph


def test_a_run_is_stopped_at_its_next_cut(tmp_path: Path) -> None:
    with running_in_a_thread(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        wait_for_status(run, lambda found: found.env_steps > 2)
        assert ask(run, ask="stop") == {"stopping": True}
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["status"], summary["why"]) == ("interrupted", "flowrl stop")


def test_a_run_in_a_thread_cannot_be_stopped_at_once(tmp_path: Path) -> None:
    with running_in_a_thread(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        wait_for_status(run, lambda found: found.env_steps > 2)
        with pytest.raises(FlowError, match="it runs in a thread of another program"):
            ask(run, ask="stop", now=True)


# the folder


def entry(folder: Path, name: str, **changes: object) -> Path:
    """An entry as a run writes it."""
    facts = {"pid": os.getpid(), "process_start_time": "1", "begun_at": 1.0, "graph": "g", "placement": "serial",
             "run_dir": "r", "socket": str(folder / f"{name}.sock"), **changes}  # fmt: skip
    write_entry(folder / f"{name}.json", RunEntry(**facts))  # type: ignore[arg-type]
    (folder / f"{name}.sock").touch()
    return folder / f"{name}.json"


def test_entries_of_dead_processes_are_removed(folder: Path) -> None:
    entry(folder, "gone", pid=2**22 + 1)
    entry(folder, "another")  # this process's number, but it began at another time
    (folder / "broken.json").write_text("{")
    assert live_entries() == []
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_may_enter_is_refused_with_one_note(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = tmp_path_factory.mktemp("x")  # short: a socket's name has a limit
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "flowrl").mkdir(mode=0o777)
    (tmp_path / "flowrl").chmod(0o777)
    told: list[str] = []

    class Listener(Watcher):
        def note(self, run: Run, text: str) -> None:
            told.append(text)

    checked = check(load_data(pair()))
    made = Run(checked, out=tmp_path / "r", limits=Limits(rounds=3), watcher=Listener())
    assert made.run().status == "finished"
    assert told == [
        "flowrl ps, top, why and stop will not find this run: "
        f"{tmp_path}/flowrl: is not a folder that only this user may enter; remove it"
    ]


def test_where_there_is_no_runtime_folder_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    made = Run(check(load_data(pair())), out=tmp_path / "r", limits=Limits(rounds=3))
    assert made.run().status == "finished"


def test_a_path_too_long_for_a_socket_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert runtime_folder() == tmp_path / f"flowrl-{os.getuid()}"


def test_a_run_may_be_stopped_before_its_nodes_are_made(tmp_path: Path) -> None:
    made = Run(check(load_data(pair())), out=tmp_path / "r")
    made.stop()
    result = made.run()
    assert (result.status, result.why) == ("interrupted", "flowrl stop")
