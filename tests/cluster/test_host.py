"""The host: how long it waits for a run, what it executes, and what it refuses."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.cluster.host import HostSettings, serve_runs
from flowrl.cluster.host_session import RunLost
from flowrl.cluster.hosted_sites import HostedSites
from flowrl.cluster.join_file import join_source
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import FlowError, NodeError, UsageError
from flowrl.graph.host_offers import HostOffer
from flowrl.machine.network_address import open_listener
from tests.cluster.host_processes import SOON_S, HostStarter, host, hosts_named, run_of
from tests.sites.run_comparison import run_graph
from tests.toys.toy_runs import toy_graph

BASIC = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])


def unused_address() -> str:
    """An address at which no process listens."""
    listener, port = open_listener("127.0.0.1")
    listener.close()
    return f"tcp://127.0.0.1:{port}"


def test_waiting_for_a_run_ends_in_time() -> None:
    settings = HostSettings(join_source(unused_address(), None), HostOffer("a"), within_s=0.3)
    with pytest.raises(RunLost, match=r"tcp://127\.0\.0\.1:\d+: no run was there within 0\.3 s"):
        serve_runs(settings, lambda text: None)


def test_a_join_file_that_is_not_written_in_time_is_named(tmp_path: Path) -> None:
    path, shown = tmp_path / "join.json", list[str]()
    settings = HostSettings(join_source(str(path), None), HostOffer("a"), within_s=0.3)
    with pytest.raises(RunLost, match=r"join\.json: no run has written this file within 0\.3 s"):
        serve_runs(settings, shown.append)
    assert shown == [f"host 'a': waiting for the join file {path}"]


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_an_address_to_which_no_machine_can_connect_is_refused(address: str) -> None:
    settings = HostSettings(
        join_source(unused_address(), None), HostOffer("a"), address=address, within_s=0.1
    )
    with pytest.raises(UsageError, match="others cannot connect to this address"):
        serve_runs(settings, lambda text: None)


def test_joining_another_machine_needs_a_key() -> None:
    with pytest.raises(UsageError, match=r"--join tcp://192\.0\.2\.1:1: others can reach"):
        join_source("tcp://192.0.2.1:1", None)


@pytest.mark.slow
def test_a_host_that_stays_serves_one_run_after_the_other(tmp_path: Path) -> None:
    address = unused_address()
    serial = run_graph(BASIC, "serial", tmp_path / "s", train_iters=2)
    there = host(address, "--name", "a", "--stay")
    try:
        rendezvous = Rendezvous(address, within_s=SOON_S)
        for number in range(2):
            run = run_of(
                BASIC, "c=a", tmp_path / f"{number}", HostStarter(), rendezvous, train_iters=2
            )
            assert run.run().digest == serial["digest"]
        there.send_signal(signal.SIGTERM)
        out = there.communicate(timeout=SOON_S)[0]
    finally:
        there.kill()
        there.communicate()
    assert there.returncode == 130
    assert out.count("joined the run graph") == 2


@pytest.mark.slow
def test_a_host_that_is_stopped_notifies_its_run(tmp_path: Path) -> None:
    class Stopping(HostStarter):
        stopped = False

        def event(self, *arguments: Any) -> None:
            if not self.stopped:
                self.stopped = True
                self.processes[0].send_signal(signal.SIGINT)

    with Stopping(("--name", "a")) as watcher:
        run = run_of(BASIC, "c=a", tmp_path / "r", watcher)
        with pytest.raises(FlowError, match="host 'a' is lost: it has left"):
            run.run()
        [(code, _)] = watcher.wait()
    assert code == 130


@pytest.mark.slow
def test_an_error_of_a_node_on_a_host_ends_the_run_with_that_error(tmp_path: Path) -> None:
    graph = toy_graph(
        {"c": "Source", "f": {"type": "FailingNode", "firing": 2}, "l": "Learner"}, ["c -> f -> l"]
    )
    with hosts_named("a") as watcher:
        run = run_of(graph, "f=a", tmp_path / "r", watcher, train_iters=9)
        with pytest.raises(NodeError, match=r"node 'f', firing 2") as error:
            run.run()
        [(code, out)] = watcher.wait()
    assert "on site 'a:f'" in (tmp_path / "r" / "error.txt").read_text()
    assert error.value.node == "f"
    assert code == 0
    assert "the run graph is over: it has failed, or was stopped" in out


# the sites of one run on a host


@pytest.fixture
def hosted() -> Iterator[HostedSites]:
    made = HostedSites("127.0.0.1")
    yield made
    folder = made._folder.path
    made.close()
    assert not folder.exists()


def test_files_are_written_to_a_private_folder_of_the_run(hosted: HostedSites) -> None:
    for piece in (b"one ", b"two"):
        hosted.write_file_piece("files/0/x", piece)
    hosted.write_file_piece("modules/0/p/empty.py", b"")
    assert (hosted.files / "files/0/x").read_bytes() == b"one two"
    assert (hosted.files / "modules/0/p/empty.py").read_bytes() == b""
    assert hosted._folder.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "files/../../x"])
def test_files_do_not_leave_that_folder(hosted: HostedSites, name: str) -> None:
    with pytest.raises(FlowError, match="which is not in this run's folder"):
        hosted.write_file_piece(name, b"")


def test_files_are_bounded(hosted: HostedSites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.cluster.hosted_sites.MAX_FILE_BYTES", 5)
    monkeypatch.setattr("flowrl.cluster.hosted_sites.MAX_MODULE_BYTES", 5)
    hosted.write_file_piece("x", b"12345")
    with pytest.raises(FlowError, match="the run sent more than 10 bytes of files"):
        hosted.write_file_piece("y", b"123456")


def test_only_announced_sites_are_started(hosted: HostedSites) -> None:
    assert set(hosted.open_listeners(["x"])) == {"x"}
    with pytest.raises(FlowError, match="starts other sites than it had announced"):
        hosted.start({}, {"y": {}})
