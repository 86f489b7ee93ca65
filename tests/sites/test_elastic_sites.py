"""Elastic sites: a process that dies is started again while the others of a free-running graph go on."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from flowrl.runtime.sites import site_restarts
from flowrl.runtime.sites.site_failures import SiteLost
from tests.toys.toy_runs import toy_graph

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
]
OWN = "tests.sites.site_nodes"
SOURCE = f"{OWN}:TimedSource"
KILLED = "its process was killed by SIGKILL"


def ratio_graph(**collector: Any) -> dict[str, Any]:
    """Return a graph of three collectors, a buffer that fires on any input, a learner, and an evaluator."""
    nodes = {
        "c": {"type": SOURCE, "replicas": 3, **collector},
        "b": f"{OWN}:RatioBuffer",
        "l": "Learner",
        "e": "Evaluator",
    }
    edges: list[Any] = [
        {"c -> b": {"merge": "any"}},
        *("b -> l", "l.priorities -> b.priorities"),
        *({"l.weights -> c.weights": {"latest": True}}, {"l.weights -> e": {"every": 50}}),
    ]
    return toy_graph(nodes, edges)


def lossy_graph(**collector: Any) -> dict[str, Any]:
    """Return a graph of three collectors with a lossy edge to a learner."""
    nodes = {"c": {"type": SOURCE, "replicas": 3, **collector}, "l": "Learner"}
    edges: list[Any] = [{"c -> l": {"merge": "any", "when_full": "drop_oldest"}}]
    return toy_graph(nodes, [*edges, {"l.weights -> c.weights": {"latest": True}}])


class Disturber(Watcher):
    """Kills processes of a run in a thread of its own, and collects what the run says."""

    def __init__(self, disturb: Callable[[Disturber], None]) -> None:
        self.disturb, self.notes = disturb, list[str]()
        self.run: Run | None = None
        self.is_over = False
        self._thread = threading.Thread(target=self._disturb, daemon=True)

    def begin(self, run: Run) -> None:
        self.run = run
        self._thread.start()

    def note(self, run: Run, text: str) -> None:
        self.notes.append(text)

    def end(self, run: Run) -> None:
        self.is_over = True
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _disturb(self) -> None:
        self.wait_until(lambda: self.fired("c#1") >= 5)
        self.disturb(self)

    def wait_until(self, condition: Callable[[], object]) -> None:
        while not (self.is_over or condition()):
            time.sleep(0.01)

    def fired(self, instance: str) -> int:
        assert self.run is not None
        return sum(node.fired for node in self.run.node_stats() if node.instance == instance)

    def pid(self, site: str) -> int:
        assert self.run is not None
        pid: int = self.run.executor.sites.processes.pids()[site]  # type: ignore[union-attr]
        return pid

    def kill(self, *sites: str) -> None:
        for pid in [self.pid(f"process:{site}") for site in sites]:
            os.kill(pid, signal.SIGKILL)

    def wait_for_return(self, times: int = 1) -> None:
        self.wait_until(lambda: sum(n.endswith("takes part again") for n in self.notes) >= times)


def run_disturbed(
    graph: dict[str, Any],
    disturb: Callable[[Disturber], None],
    out: Path,
    placement: str = "processes",
    recovers: bool = True,
    **limits: Any,
) -> dict[str, Any]:
    """Run a graph that is disturbed, and return its summary, with the firings of each instance."""
    watcher = Disturber(disturb)
    run = Run(
        check(load_data(graph)),
        placement=placement,
        out=out,
        limits=Limits(**limits),
        watcher=watcher,
        recovers=recovers,
    )
    run.run()
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    summary["fired"] = {node.instance: node.fired for node in run.node_stats()}
    summary["notes"] = watcher.notes
    return summary


def log_of(out: Path, instance: str) -> list[str]:
    return (out / "logs" / f"{instance}.log").read_text().splitlines()


@pytest.mark.parametrize("graph", [ratio_graph, lossy_graph])
def test_a_killed_collector_is_started_again_while_the_others_go_on(
    graph: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    learned: list[int] = []

    def kill(run: Disturber) -> None:
        run.kill("c#1")
        run.wait_until(lambda: run.notes)
        learned.append(run.fired("l"))
        run.wait_for_return()
        learned.append(run.fired("l"))
        gate.touch()

    gate = tmp_path / "gate"  # nobody reaches the limit before c#1 takes part again
    found = run_disturbed(graph(gate=str(gate)), kill, tmp_path / "r", steps=6000)
    assert found["status"] == "finished"
    assert found["env_steps"] == 10 * sum(found["fired"][c] for c in ("c", "c#1", "c#2"))
    assert 6000 <= found["env_steps"] < 6030  # the end of a round, in which c#1 was away or not
    assert learned[1] > learned[0]
    assert 5 < found["fired"]["c#1"] < found["fired"]["c"] == found["fired"]["c#2"]
    lost = f"site 'process:c#1' was lost 1 time, while the run went on (last: {KILLED})"
    assert found["happened"][0].startswith(lost)
    assert found["recoveries"] == 0
    gave = [line.split(" gave ")[1] for line in log_of(tmp_path / "r", "c#1") if " gave " in line]
    assert len(set(gave)) == len(gave)  # another random stream
    saw = [int(line.split()[-1]) for line in log_of(tmp_path / "r", "c#1") if " saw " in line]
    assert saw == sorted(saw)  # the newest version was sent again


@pytest.mark.parametrize("limit", [{"train_iters": 400}, {"rounds": 120}])
def test_every_limit_ends_a_run_that_has_lost_all_collectors_for_a_while(
    limit: dict[str, Any], tmp_path: Path
) -> None:
    found = run_disturbed(
        ratio_graph(), lambda run: run.kill("c", "c#1", "c#2"), tmp_path / "r", **limit
    )
    assert found["status"] == "finished"
    assert len([line for line in found["happened"] if "was lost 1 time" in line]) == 3
    if "train_iters" in limit:
        assert found["train_iters"] == 400
    if "rounds" in limit:
        assert found["why"] == "120 rounds were asked for"


def test_all_collectors_are_started_again_when_their_fork_server_dies(tmp_path: Path) -> None:
    def kill(run: Disturber) -> None:
        assert run.run is not None
        [server, *_] = run.run.executor.sites.processes.sessions  # type: ignore[union-attr]
        os.kill(server, signal.SIGKILL)

    placement = "c=process,b=main,l=main,e=main"
    found = run_disturbed(ratio_graph(), kill, tmp_path / "r", placement, steps=4000)
    assert 4000 <= found["env_steps"] < 4030
    assert sum("was lost 1 time" in line for line in found["happened"]) == 3


def test_collectors_that_are_killed_while_they_send_lose_tokens_and_repeat_none(
    tmp_path: Path,
) -> None:
    draw = random.Random(5)

    def kill(run: Disturber) -> None:
        for times in range(1, 4):
            run.kill(*draw.sample(["c", "c#1", "c#2"], 1))
            run.wait_for_return(times)
            time.sleep(draw.uniform(0.0, 0.2))
        run.kill("c", "c#2")
        run.wait_until(lambda: len(run.notes) >= 8)
        assert run.run is not None
        run.run.stop()

    found = run_disturbed(lossy_graph(each_s=0.0, give=8), kill, tmp_path / "r", steps=10**9)
    assert found["status"] == "interrupted"
    assert found["env_steps"] <= 10 * sum(found["fired"][c] for c in ("c", "c#1", "c#2"))
    took = [line.split()[-1] for line in log_of(tmp_path / "r", "l")]
    assert len(set(took)) == len(took) > 1000


def test_a_lost_site_is_not_awaited_when_the_run_is_stopped(tmp_path: Path) -> None:
    def kill_and_stop(run: Disturber) -> None:
        assert run.run is not None
        run.kill("c#1")
        run.wait_until(lambda: run.notes)
        run.run.stop()

    began_s = time.monotonic()
    found = run_disturbed(ratio_graph(), kill_and_stop, tmp_path / "r", steps=10**9)
    assert found["status"] == "interrupted"
    assert time.monotonic() - began_s < 30


def test_a_run_that_does_not_recover_fails_at_the_first_loss(tmp_path: Path) -> None:
    with pytest.raises(SiteLost, match=f"site 'process:c#1' has ended: {KILLED}"):
        run_disturbed(
            ratio_graph(), lambda r: r.kill("c#1"), tmp_path / "r", recovers=False, time_s=60.0
        )


def test_a_site_that_is_lost_again_and_again_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_restarts, "WAITS_S", (0.0, 0.1))

    def kill(run: Disturber) -> None:
        for times in range(1, 4):
            run.kill("c#1")
            run.wait_for_return(times)

    why = f"site 'process:c#1' has ended: {KILLED}; it was lost 3 times in a row"
    with pytest.raises(SiteLost, match=why):
        run_disturbed(ratio_graph(), kill, tmp_path / "r", time_s=60.0)


def test_the_loss_of_a_site_that_is_not_elastic_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(SiteLost, match=f"site 'process:b' has ended: {KILLED}"):
        run_disturbed(ratio_graph(), lambda run: run.kill("b"), tmp_path / "r", time_s=60.0)
