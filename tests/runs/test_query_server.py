"""The socket on which a run answers queries, and the registry in which it is found."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.errors import FlowError, UsageError
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.queries import ask, query_status
from flowrl.runs.query_server import QUERY_BYTES, answering_queries
from flowrl.runs.registry import RunEntry, live_entries, runtime_folder, write_entry
from flowrl.runs.run import Run
from flowrl.runs.run_names import find_live_run, find_run_folder
from flowrl.runs.watcher import Watcher
from tests.runs.threaded_runs import (
    DEADLINE_S,
    pair,
    running_in_a_thread,
    wait_for,
    wait_for_status,
)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder for this test alone, as other tests may have active runs."""
    # The folder is a short one, because a socket's path is limited.
    with TemporaryDirectory(prefix="flowrl-test-", dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        folder = runtime_folder()
        assert folder.parent == Path(short)
        yield folder


def answer_to(entry: RunEntry, text: bytes) -> dict[str, str]:
    """The answer of a run to any bytes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(entry.socket)
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return dict(json.loads(connection.makefile().read()))


def test_an_active_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
    with pytest.raises(UsageError, match=f"{tmp_path}/r: the run has ended; no run is active"):
        find_live_run(str(tmp_path / "r"))


def test_a_run_is_named_by_its_folder_a_unique_prefix_or_its_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    slow = pair(a={"each_s": 0.01})
    with (
        running_in_a_thread(slow, tmp_path / "one-1") as one,
        running_in_a_thread(slow, tmp_path / "one-2") as two,
    ):
        assert find_live_run("one-2") == find_live_run("last") == two
        assert find_live_run("one-1") == one
        for word in ("one", str(os.getpid())):
            with pytest.raises(UsageError, match=r"is ambiguous; active runs: one-1 \(pid"):
                find_live_run(word)
        with pytest.raises(UsageError, match="zwei: there is no such active run; active runs: "):
            find_live_run("zwei")


@pytest.mark.parametrize(
    "query", [b"", b"\n", b"[]\n", b"{\n", b"\xff\xfe\n", b"x" * (2 * QUERY_BYTES)]
)
def test_a_malformed_query_is_refused_without_harm(query: bytes, tmp_path: Path) -> None:
    with running_in_a_thread(pair(a={"each_s": 0.01}), tmp_path / "r") as run:
        try:
            assert answer_to(run, query) == {"error": "expected a line of JSON: an object"}
        except (ConnectionError, BrokenPipeError):
            assert len(query) > QUERY_BYTES  # the run closed the connection before all was sent
        assert query_status(run).status in ("starting", "running")


def test_an_unknown_query_is_refused(tmp_path: Path) -> None:
    refusal = pytest.raises(
        FlowError, match="unknown query 'dance'; known: status, stop, snapshot, peek"
    )
    with running_in_a_thread(pair(a={"each_s": 0.01}), tmp_path / "r") as run, refusal:
        ask(run, ask="dance")


def test_a_client_that_sends_nothing_delays_others_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.runs.query_server.QUERY_TIMEOUT_S", 0.2)
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


def test_the_query_that_ends_a_run_is_answered_before_the_run_has_ended(tmp_path: Path) -> None:
    def answer(query: Mapping[str, Any]) -> dict[str, Any]:
        end_run.set()
        wait_for(lambda: not live_entries())  # the run is about to end
        return {"stopping": True}

    end_run = threading.Event()
    with socket.socket(socket.AF_UNIX) as client:
        with answering_queries("g", "serial", tmp_path, answer, warn=print):
            [run] = live_entries()
            client.connect(run.socket)
            client.sendall(b'{"ask": "stop"}\n')
            assert end_run.wait(DEADLINE_S)
        client.setblocking(False)
        assert json.loads(client.recv(1000)) == {"stopping": True}


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
    entry(folder, "another")  # of an earlier process with the pid of this one
    (folder / "broken.json").write_text("{")
    assert live_entries() == []
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_may_enter_is_refused_with_one_note(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = tmp_path_factory.mktemp("x")  # short, as a socket's path is limited
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "flowrl").mkdir(mode=0o777)
    (tmp_path / "flowrl").chmod(0o777)
    notes: list[str] = []

    class Listener(Watcher):
        def note(self, run: Run, text: str) -> None:
            notes.append(text)

    checked = check(load_data(pair()))
    made = Run(checked, out=tmp_path / "r", limits=Limits(rounds=3), watcher=Listener())
    assert made.run().status == "finished"
    assert notes == [
        "flowrl ps, top, why, peek and stop will not find this run: "
        f"{tmp_path}/flowrl: is not a folder that only this user may enter; remove it"
    ]


def test_without_a_runtime_folder_a_run_takes_place_all_the_same(
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
