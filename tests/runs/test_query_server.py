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
from flowrl.runs.queries import ask, find_folder, find_live, look
from flowrl.runs.query_server import QUESTION_BYTES
from flowrl.runs.registry import Entry, entries, runtime_folder, write_entry
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from tests.runs.going import going, look_until, pair


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of this test's own: others may have runs of their own going on."""
    with TemporaryDirectory(prefix="flowrl-test-", dir="/tmp") as short:  # sockets want short paths
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        folder = runtime_folder()
        assert folder.parent == Path(short)
        yield folder


def sent(entry: Entry, text: bytes) -> dict[str, str]:
    """What a run answers to anything."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(entry.socket)
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return dict(json.loads(connection.makefile().read()))


def test_a_run_is_found_while_it_goes_on(tmp_path: Path) -> None:
    with going(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        assert (run.pid, run.graph, run.placement) == (os.getpid(), look(run)["graph"], "serial")
        assert find_live(str(tmp_path / "r")) == run
        assert find_live("last") == run
        assert find_folder(str(tmp_path / "r")) == (tmp_path / "r", run)
        assert Path(run.socket).parent.stat().st_mode & 0o777 == 0o700
    assert run not in entries()
    assert not Path(run.socket).exists()
    with pytest.raises(UsageError, match=f"{tmp_path}/r: it has ended; no run is going on"):
        find_live(str(tmp_path / "r"))


def test_a_run_is_meant_by_its_name_how_that_begins_or_its_pid(tmp_path: Path) -> None:
    slow = pair(a={"each_s": 0.01})
    with going(slow, tmp_path / "one-1") as one, going(slow, tmp_path / "one-2") as two:
        assert find_live("one-2") == find_live("last") == two
        assert find_live("one-1") == one
        for word in ("one", str(os.getpid())):
            with pytest.raises(UsageError, match=r"which one\? runs that go on: one-1 \(pid"):
                find_live(word)
        with pytest.raises(UsageError, match="zwei: no such run is going on; runs that go on: "):
            find_live("zwei")


@pytest.mark.parametrize(
    "question", [b"", b"\n", b"[]\n", b"{\n", b"\xff\xfe\n", b"x" * (2 * QUESTION_BYTES)]
)
def test_what_is_no_question_is_refused_and_harms_nothing(question: bytes, tmp_path: Path) -> None:
    with going(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        try:
            assert sent(run, question) == {"error": "expected a line of JSON: an object"}
        except (ConnectionError, BrokenPipeError):
            assert len(question) > QUESTION_BYTES  # it hung up before all was said
        assert look(run)["status"] in ("starting", "running")


def test_an_unknown_question_is_told_so(tmp_path: Path) -> None:
    told = pytest.raises(FlowError, match="unknown question 'dance'; known: look, stop")
    with going(pair(a={"each_s": 0.01}), tmp_path / "r") as run, told:
        ask(run, ask="dance")


def test_who_asks_and_says_nothing_keeps_others_waiting_for_a_moment_only(tmp_path: Path) -> None:
    with (
        going(pair(a={"each_s": 0.01}), tmp_path / "r") as run,
        socket.socket(socket.AF_UNIX) as silent,
    ):
        silent.connect(run.socket)
        assert look(run)["graph"] == run.graph


def test_a_run_is_stopped_at_its_next_cut(tmp_path: Path) -> None:
    with going(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        look_until(run, lambda found: found["env_steps"] > 2)
        assert ask(run, ask="stop") == {"stops": True}
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["status"], summary["why"]) == ("interrupted", "flowrl stop")


def test_a_run_in_a_thread_cannot_be_stopped_at_once(tmp_path: Path) -> None:
    with going(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        look_until(run, lambda found: found["env_steps"] > 2)
        with pytest.raises(FlowError, match="it runs in a thread of another program"):
            ask(run, ask="stop", now=True)


# the folder


def entry(folder: Path, name: str, **changes: object) -> Path:
    """An entry as a run writes it."""
    facts = {"pid": os.getpid(), "born": "1", "begun_at": 1.0, "graph": "g", "placement": "serial",
             "run_dir": "r", "socket": str(folder / f"{name}.sock"), **changes}  # fmt: skip
    write_entry(folder / f"{name}.json", Entry(**facts))  # type: ignore[arg-type]
    (folder / f"{name}.sock").touch()
    return folder / f"{name}.json"


def test_what_dead_processes_left_is_swept(folder: Path) -> None:
    entry(folder, "gone", pid=2**22 + 1)
    entry(folder, "another")  # this process's number, but it began at another time
    (folder / "broken.json").write_text("{")
    assert entries() == []
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_may_enter_is_not_used_and_told_once(
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
