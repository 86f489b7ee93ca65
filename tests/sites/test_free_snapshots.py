"""Snapshots of graphs in which nodes may lack tokens, on several sites: all sites stand still for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.runs.snapshot_files import read_newest_snapshot
from flowrl.runs.watcher import Watcher
from tests.sites.test_elastic_sites import Disturber, log_of, ratio_graph, run_disturbed

INEXACT = "the run was continued, and not exactly as it would have gone on: "


def free_run(out: Path, placement: str = "threads", **limits: Any) -> flowrl.RunResult:
    graph = {**ratio_graph(each_s=0.0), "snapshots": {"every_rounds": 10}}
    return flowrl.load(graph).run(placement=placement, out=out, quiet=True, **limits)


def fired(out: Path, node: str) -> int:
    part = read_newest_snapshot(out).snapshot.parts[f"node/{node}"]
    return int(part.state_dict()["fired"])


def tokens(out: Path, edge: str) -> int:
    parts = read_newest_snapshot(out).snapshot.parts
    return sum(
        len(part.state_dict()["tokens"])
        for key, part in parts.items()
        if key.startswith(f"edge/{edge}:")
    )


@pytest.mark.slow
@pytest.mark.parametrize("resumed", ["threads", "serial"])
def test_a_free_running_graph_goes_on_from_its_snapshot(resumed: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    first = free_run(out, steps=1200)
    assert first.snapshot_rounds == 40
    counts = read_newest_snapshot(out).snapshot.counts
    assert (counts.env_steps, counts.train_iters) == (first.env_steps, fired(out, "l"))
    assert counts.env_steps == 40 * 3 * 10
    result = flowrl.resume(out, placement=resumed, steps=2400, quiet=True)
    assert result.env_steps == 80 * 3 * 10
    assert result.train_iters > first.train_iters
    assert any(line.startswith(INEXACT) for line in result.happened) == (resumed == "threads")
    took = [line for line in log_of(out, "l") if line]
    assert len(took) == result.train_iters  # no firing is missing or was done twice


@pytest.mark.slow
def test_no_token_is_lost_on_its_way(tmp_path: Path) -> None:
    """Each batch needs a request of the learner, of which one is on its way at any time: a lost one would end all."""
    out = tmp_path / "r"
    for rounds in (20, 40, 60, 80):
        result = (
            flowrl.resume(out, placement="threads", steps=30 * rounds, quiet=True)
            if out.exists()
            else free_run(out, steps=30 * rounds)
        )
        requests = tokens(out, "b.priorities") + tokens(out, "l.data")
        buffer = read_newest_snapshot(out).snapshot.parts["node/b"].state_dict()["state"]
        assert requests + buffer["requested"] == 1
        assert result.snapshot_rounds == rounds


@pytest.mark.slow
def test_snapshots_are_saved_while_the_run_goes_on(tmp_path: Path) -> None:
    rounds: list[int] = []

    class Watches(Watcher):
        def event(self, run: Any, source: Any, record: Any) -> None:
            if run.snapshots.newest and run.snapshots.newest.rounds not in rounds:
                rounds.append(run.snapshots.newest.rounds)

    graph = {**ratio_graph(each_s=0.001), "snapshots": {"every_rounds": 10}}
    flowrl.load(graph).run(
        placement="threads", steps=12000, out=tmp_path / "r", quiet=True, watcher=Watches()
    )
    assert rounds  # how many depends on the disk, which takes one after the other


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_run_recovers_from_the_loss_of_a_site_that_is_not_elastic(tmp_path: Path) -> None:
    def kill(run: Disturber) -> None:
        assert run.run is not None
        owner = run.run

        def newest() -> int:
            assert owner.snapshots is not None
            return owner.snapshots.newest.rounds if owner.snapshots.newest else 0

        def wait_for_snapshot() -> None:
            before = newest()
            run.wait_until(lambda: newest() > before)

        run.kill("c#1")
        run.wait_for_return()
        wait_for_snapshot()
        run.kill("b")
        run.wait_until(lambda: any("went on from its snapshot" in note for note in run.notes))
        wait_for_snapshot()
        owner.stop()

    graph = {**ratio_graph(), "snapshots": {"every_rounds": 10}}
    found = run_disturbed(graph, kill, tmp_path / "r", steps=10**9)
    assert found["recoveries"] == 1
    assert INEXACT in found["happened"][1]
    assert len(log_of(tmp_path / "r", "l")) == found["train_iters"] > 0
