"""Elastic sites on hosts: one that is lost is started again on a host that is there, or on one that joins later."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowrl.cluster.rendezvous import Rendezvous
from flowrl.runs.run import Run
from flowrl.runtime.sites.site_failures import SiteLost
from tests.cluster.host_processes import ANYWHERE, SOON_S, Process, host, run_of
from tests.sites.test_elastic_sites import Disturber, ratio_graph

pytestmark = pytest.mark.slow


class HostDisturber(Disturber):
    """Starts hosts as soon as the run waits for them, and disturbs them in a thread of its own."""

    def __init__(self, disturb: Callable[[Any], None], *names: str) -> None:
        super().__init__(disturb)
        self.names, self.address = names, ""
        self.hosts: dict[str, Process] = {}
        self.gate = Path()
        self.patience_s: float | None = None  # with lost sites, once a host has joined

    def note(self, run: Run, text: str) -> None:
        super().note(run, text)
        if " has joined " in text and self.patience_s is not None:
            assert run.sites.hosts is not None
            run.sites.hosts.sites.patience_s = self.patience_s
        if text.startswith("waiting for hosts"):
            self.address = text.split()[-1]
            for name in self.names:
                self.start_host(name)

    def start_host(self, name: str) -> None:
        self.hosts[name] = host(self.address, "--name", name)

    def kill_host(self, name: str) -> None:
        self.hosts[name].kill()
        self.hosts[name].wait()

    def kill_sites_of(self, name: str) -> None:
        pid = self.hosts[name].pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)

    def close(self) -> None:
        for process in self.hosts.values():
            process.kill()
            process.communicate()


def run_on_hosts(
    disturb: Callable[[HostDisturber], None],
    out: Path,
    *names: str,
    patience_s: float | None = None,
    replicas: int | str = 2,
    **limits: Any,
) -> Any:
    """Run collectors on hosts whose names begin with `cpu`, beside a buffer and a learner on this machine."""
    watcher = HostDisturber(disturb, *names)
    watcher.gate = out.parent / "gate"  # nobody reaches the limit before
    watcher.patience_s = patience_s
    rendezvous = Rendezvous(ANYWHERE, hosts=len(names), within_s=SOON_S)
    graph = ratio_graph(replicas=replicas, gate=str(watcher.gate))
    placement = "c=cpu-*,b=process,l=process,e=main"
    try:
        return run_of(graph, placement, out, watcher, rendezvous, **limits).run(), watcher.notes
    finally:
        watcher.close()


def test_the_collector_of_a_dead_host_goes_on_on_another_one(tmp_path: Path) -> None:
    def kill(run: HostDisturber) -> None:
        run.kill_host("cpu-2")
        run.wait_for_return()
        run.gate.touch()

    result, notes = run_on_hosts(kill, tmp_path / "r", "cpu-1", "cpu-2", steps=2500)
    assert 2500 <= result.env_steps < 2520
    assert "site 'cpu-2:c#1' takes part again" in notes
    assert "was lost 1 time" in result.happened[0]
    assert "host 'cpu-2' is lost" in result.happened[0]


def test_a_killed_process_is_started_again_on_its_host(tmp_path: Path) -> None:
    def kill(run: HostDisturber) -> None:
        run.kill_sites_of("cpu-2")
        run.wait_for_return()
        run.gate.touch()

    result, _ = run_on_hosts(kill, tmp_path / "r", "cpu-1", "cpu-2", steps=2500)
    assert 2500 <= result.env_steps < 2520
    assert "was killed by SIGKILL, on host 'cpu-2'" in result.happened[0]


def test_a_host_that_joins_later_gets_the_collectors_that_have_none(tmp_path: Path) -> None:
    def kill_and_replace(run: HostDisturber) -> None:
        run.kill_host("cpu-1")
        run.wait_until(lambda: any("waits for a host" in note for note in run.notes))
        run.start_host("cpu-9")
        run.wait_for_return(2)
        run.gate.touch()

    result, notes = run_on_hosts(kill_and_replace, tmp_path / "r", "cpu-1", steps=2500)
    assert 2500 <= result.env_steps < 2520
    assert sum(note.endswith("takes part again") for note in notes) == 2


def test_a_run_that_has_lost_all_hosts_ends_after_its_patience(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with pytest.raises(SiteLost, match="no host has joined for it within 6 s"):
        run_on_hosts(
            lambda run: run.kill_host("cpu-1"), tmp_path / "r", "cpu-1", patience_s=6.0, steps=10**9
        )
    assert time.monotonic() - began_s < SOON_S


def test_replicas_join_with_their_hosts_and_leave_with_them(tmp_path: Path) -> None:
    fired_before: list[int] = []

    def join_and_leave(run: HostDisturber) -> None:
        run.start_host("cpu-2")
        run.wait_until(lambda: "site 'cpu-*:c#2' takes part" in run.notes)
        fired_before.append(run.fired("c#3"))
        run.start_host("cpu-3")
        run.wait_until(lambda: run.fired("c#2") >= 5 and run.fired("c#3") >= 5)
        run.kill_host("cpu-2")
        run.wait_until(lambda: any("waits for a host" in note for note in run.notes))
        run.gate.touch()

    result, notes = run_on_hosts(
        join_and_leave, tmp_path / "r", "cpu-1", replicas="2..5", steps=4000
    )
    assert fired_before == [0]
    assert "site 'cpu-*:c#3' takes part" in notes
    assert 4000 <= result.env_steps < 4050
    assert list(result.happened[:3]) == [
        "site 'cpu-*:c#2' joined while the run went on, on host 'cpu-2'",
        "site 'cpu-*:c#3' joined while the run went on, on host 'cpu-3'",
        "no host was there for 'cpu-*:c#4', and the run did without it",
    ]
    assert "site 'cpu-*:c#2' was lost 1 time" in result.happened[3]


def test_a_run_ends_without_a_replica_that_never_came(tmp_path: Path) -> None:
    result, notes = run_on_hosts(
        lambda run: run.gate.touch(), tmp_path / "r", "cpu-1", "cpu-2", replicas="1..3", rounds=30
    )
    assert result.happened[0].startswith("no host was there for 'cpu-*:c#2', and")
    assert not any("takes part" in note for note in notes)
    assert result.env_steps == 30 * 2 * 10
