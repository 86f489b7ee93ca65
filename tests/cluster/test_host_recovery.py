"""A run that loses a host, or a process on one, goes on from its newest snapshot with the hosts that there are."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.core.records import Record
from flowrl.graph.yaml_writer import flow_text
from flowrl.runs.run import Run
from flowrl.runs.snapshot_files import snapshot_folders
from flowrl.runtime.records import RecordSource
from tests.cluster.host_processes import HostStarter, host, run_of
from tests.cluster.network import Network, network, why_not
from tests.cluster.test_network import ended, started
from tests.sites.run_comparison import read_results, run_graph
from tests.toys.toy_runs import toy_graph

pytestmark = pytest.mark.slow
ITERS = 3000
CUT_ITERS = 6000
GRAPH = toy_graph(
    {"c": {"type": "Source", "replicas": 2}, "l": "Learner", "e": "Evaluator"},
    ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 100}}],
    snapshots={"every_rounds": 100},
)


class Disturber(HostStarter):
    """Starts a host in the place of each one that has ended, and does something once there is a snapshot."""

    def __init__(self) -> None:
        super().__init__(("--name", "a"), ("--name", "b"))
        self.has_disturbed = False

    def note(self, run: Run, text: str) -> None:
        self.notes.append(text)
        if not text.startswith("waiting for hosts"):
            return
        for number, words in enumerate(self.offers):
            if len(self.processes) <= number:
                self.processes.append(host(text.split()[-1], *words))
            elif self.processes[number].poll() is not None:
                self.processes[number].communicate()
                self.processes[number] = host(text.split()[-1], *words)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if not self.has_disturbed and snapshot_folders(Path(run.run_dir)):
            self.has_disturbed = True
            self.disturb(self.processes[0].pid)

    def disturb(self, pid: int) -> None:
        """Kill the first host, and let it be noticed that it has ended."""
        os.kill(pid, signal.SIGKILL)
        self.processes[0].wait()


class SiteKiller(Disturber):
    """Kills the processes of the first host."""

    def disturb(self, pid: int) -> None:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)


class StoppedWaiting(Disturber):
    """Asks for a cut while the run waits for hosts: at first, or after the loss of one."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waits_left = waits

    def note(self, run: Run, text: str) -> None:
        is_waiting = text.startswith("waiting for hosts")
        self.waits_left -= is_waiting
        if is_waiting and not self.waits_left:
            run.stop()
        else:
            super().note(run, text)


@pytest.mark.parametrize(
    ("waits", "how"), [(1, "before the first firing"), (2, "while it recovered from a loss")]
)
def test_a_run_that_waits_for_hosts_can_be_stopped(waits: int, how: str, tmp_path: Path) -> None:
    with StoppedWaiting(waits) as watcher:
        run = run_of(GRAPH, "c=a,l=b", tmp_path / "r", watcher, train_iters=10**9)
        with pytest.raises(KeyboardInterrupt):
            run.run()
    assert run.ended is not None
    assert (run.ended.status, run.ended.why) == ("interrupted", f"stopped {how}")
    assert bool(run.ended.resume) == (waits == 2)


def results(folder: Path) -> dict[str, Any]:
    found = read_results(folder)
    told = ("recoveries", "happened", "resume", "snapshot_rounds", "warnings")
    return {name: value for name, value in found.items() if name not in told}


@pytest.mark.parametrize(
    ("disturber", "loss"),
    [
        (SiteKiller, "was killed by SIGKILL, on host 'a'"),
        (Disturber, "host 'a' is lost: its connection is closed"),
    ],
)
def test_a_run_goes_on_with_the_hosts_that_there_are(
    disturber: type[Disturber], loss: str, tmp_path: Path
) -> None:
    run_graph(GRAPH, "serial", tmp_path / "whole", train_iters=ITERS)
    with disturber() as watcher:
        result = run_of(GRAPH, "c=a,l=b", tmp_path / "r", watcher, train_iters=ITERS).run()
        outcomes = watcher.wait()
    assert result.recoveries == 1
    assert loss in result.happened[0]
    assert [code for code, _ in outcomes] == [0, 0]
    assert results(tmp_path / "r") == results(tmp_path / "whole")


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.mark.needs("ip")
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_run_goes_on_when_a_cut_network_is_whole_again(net: Network, tmp_path: Path) -> None:
    text = "".join(f"{key}: {flow_text(value)}\n" for key, value in GRAPH.items())
    (tmp_path / "g.yaml").write_text(text)
    sets = ("--train-iters", str(CUT_ITERS), "--hosts-within", "40s")
    run, a, b = started(net, tmp_path, "c=a,l=b", *sets, graph="g.yaml", stay=True)
    deadline = time.monotonic() + 60
    while not snapshot_folders(tmp_path / "r"):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    net.cable("a", "down")
    time.sleep(10)  # longer than the silence after which a host is lost
    net.cable("a", "up")
    code, out, err = ended(run)
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["status"], summary["recoveries"]) == ("finished", 1)
    assert "host 'a' is lost: nothing was heard of it for 8 s" in summary["happened"][0]
    whole = run_graph(GRAPH, "serial", tmp_path / "s", train_iters=CUT_ITERS)
    assert whole["digest"] == summary["digest"]
    for process in (a, b):
        process.send_signal(signal.SIGINT)
