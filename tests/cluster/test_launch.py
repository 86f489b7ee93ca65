"""Runs whose hosts are launched, as processes of this machine: bits, faults, fences, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.cluster.join_file import JOIN_FILE, parse_join_text
from flowrl.cluster.joined_host import HostError
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.resume import resumed_run
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from flowrl.runtime.status import HostStatus
from tests.sites.run_comparison import run_graph
from tests.toys.toy_runs import toy_graph

BASIC = toy_graph({"c": "Source", "l": "Learner"}, ["c -> l", "l.weights -> c.weights"])
TWO = [
    {"type": "local", "label": "left", "hosts": 1},
    {"type": "local", "label": "right", "hosts": 1},
]
PLACEMENT = "c=left-*,l=right-0"
CARTPOLE = {"extends": "cartpole_dqn", "nodes": {"collector": {"replicas": 2}}}


class Notes(Watcher):
    """Keeps what was shown, and does something once when so many train iterations are done."""

    def __init__(self, after_iters: int = 0, act: Any = None) -> None:
        self.notes: list[str] = []
        self.join_text = ""
        self._after_iters, self._act = after_iters, act

    def note(self, run: Run, text: str) -> None:
        self.notes.append(text)
        if text.startswith("waiting for") and run.folder is not None:
            self.join_text = (run.folder.path / JOIN_FILE).read_text()

    def event(self, run: Run, *_: Any) -> None:
        if self._act is not None and run.counts.train_iters >= self._after_iters:
            act, self._act = self._act, None
            act(run)


def launched_run(graph: Any, out: Path, notes: Notes, launch: Any = TWO, **options: Any) -> Run:
    options = {"placement": PLACEMENT, **options}
    rendezvous = Rendezvous(within_s=60, launch=launch)
    return Run(check(load_data(graph)), rendezvous=rendezvous, out=out, watcher=notes, **options)


def host_processes(out: Path) -> list[str]:
    """The processes of this machine that are hosts of a run."""
    found = subprocess.run(
        ["pgrep", "-af", "--", str(out)], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if "flowrl host" in line]


@pytest.mark.slow
def test_launched_hosts_run_the_graph_with_the_same_bits(tmp_path: Path) -> None:
    serial = run_graph(BASIC, "serial", tmp_path / "s", train_iters=2)
    notes, out = Notes(), tmp_path / "run"
    result = launched_run(BASIC, out, notes, limits=Limits(train_iters=2)).run()
    assert result.digest == serial["digest"]
    assert notes.notes[0] == "waiting for 2 hosts to be launched"
    assert any(line.startswith("host 'left-0' has joined") for line in notes.notes)
    assert parse_join_text(notes.join_text, "").keys is not None
    ended = json.loads((out / JOIN_FILE).read_text())
    assert (ended["ended"], "secret" in ended) == (True, False)
    assert "joined the run graph as 'right-0'" in (out / "hosts" / "right.0.log").read_text()
    assert not (out / "hosts" / "key").exists()
    assert not host_processes(out)


@pytest.mark.slow
def test_the_key_is_in_no_command_and_gone_at_the_end(tmp_path: Path) -> None:
    out, secrets, commands = tmp_path / "run", list[str](), list[str]()

    def look(run: Run) -> None:
        for path in (out / JOIN_FILE, out / "hosts" / f"left.{JOIN_FILE}"):
            secrets.append(json.loads(path.read_text())["secret"])
        commands.extend(host_processes(out))

    launched_run(BASIC, out, Notes(1, look), limits=Limits(train_iters=4)).run()
    assert len(commands) == 2
    assert len(set(secrets)) == 1
    assert secrets[0] not in "".join(commands)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert not [path for path in files if secrets[0].encode() in path.read_bytes()]


def test_hosts_that_cannot_start_end_the_wait_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(HostError, match="launch left: /nowhere/python: No such file or directory"):
        launched_run(BASIC, tmp_path / "run", Notes()).run()


def test_a_launch_without_hosts_in_the_placement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--launch: the placement puts nothing on a host"):
        launched_run(BASIC, tmp_path, Notes(), placement="threads")


def test_the_launchers_of_a_graph_are_used_where_a_placement_names_hosts(tmp_path: Path) -> None:
    graph = {**BASIC, "launch": TWO}
    options: dict[str, Any] = {"limits": Limits(train_iters=2), "watcher": Notes()}
    checked = check(load_data(graph))
    placed = Run(checked, placement=PLACEMENT, **options)
    assert placed.sites.rendezvous is not None
    assert [spec.config.label for spec in placed.sites.rendezvous.launchers()] == ["left", "right"]
    assert Run(checked, placement="threads", **options).sites.rendezvous is None


def test_a_place_that_no_launched_host_can_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"no launched host can be 'gpu-1'; name one of 'left-\*', 'right-\*'"
    ):
        launched_run(BASIC, tmp_path, Notes(), placement="c=left-0,l=gpu-1")
    with pytest.raises(UsageError, match="no launched host can be 'left-1'"):
        launched_run(BASIC, tmp_path, Notes(), placement="c=left-1")


@pytest.mark.slow
def test_a_host_that_dies_is_started_again_and_the_run_recovers(tmp_path: Path) -> None:
    limits, out = Limits(train_iters=300), tmp_path / "run"
    graph = {**CARTPOLE, "snapshots": {"every_s": 0.5}}
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=300)

    def kill_one(run: Run) -> None:
        pids = [int(line.split()[0]) for line in host_processes(out)]
        os.kill(pids[0], signal.SIGKILL)

    notes = Notes(60, kill_one)
    launch = {"type": "local", "label": "cpu", "hosts": 2}
    run = launched_run(graph, out, notes, launch, placement="collector=cpu-*", limits=limits)
    assert run.run().digest == serial["digest"]
    assert any(
        "was killed by SIGKILL" in line and "again in 1 s (1 of 3)" in line for line in notes.notes
    )
    assert not host_processes(out)


@pytest.mark.slow
def test_hosts_end_when_the_process_of_their_run_is_killed_and_a_resume_starts_others(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    (tmp_path / "g.yaml").write_text(
        json.dumps({**CARTPOLE, "snapshots": {"every_rounds": 5}, "launch": {
            "type": "local", "label": "cpu", "rejoin": "1s"}})
    )  # fmt: skip
    words = ["-m", "flowrl", "run", "g.yaml", "--placement", "collector=cpu-*", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, *words, "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    deadline = time.monotonic() + 120
    while not list(out.glob("snapshots/[0-9]*/manifest.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    while host_processes(out):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run, _, _ = resumed_run(
        out,
        settings={},
        placement="collector=cpu-*",
        limits=Limits(train_iters=2000),
        rendezvous=None,
        watcher=Notes(),
    )
    result = run.run()
    serial = run_graph(CARTPOLE, "serial", tmp_path / "s", train_iters=2000)
    assert result.digest == serial["digest"]
    assert json.loads((out / JOIN_FILE).read_text())["epoch"] == 1


@pytest.mark.slow
def test_the_hosts_of_a_run_are_shown(tmp_path: Path) -> None:
    from flowrl.cli.hosts import hosts_text
    from flowrl.runs.run_status import status_of

    seen: list[str] = []
    statuses: list[HostStatus] = []

    def look(run: Run) -> None:
        status = status_of(run)
        statuses.extend(status.hosts)
        seen.append(hosts_text(status))

    launched_run(BASIC, tmp_path / "run", Notes(1, look), limits=Limits(train_iters=4)).run()
    assert {host.name: host.sites for host in statuses} == {
        "left-0": ("left-0:c",),
        "right-0": ("right-0:l",),
    }
    assert "launch left: its hosts run" in seen[0]
    assert "at work" in seen[0]
