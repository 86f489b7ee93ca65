"""Runs on a real Slurm: bits, faults, a job that is put back into the queue, and what is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.cluster.joined_host import HostError
from flowrl.core.errors import FlowError
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from tests.cluster.slurm import NODES, SlurmCluster, slurm_cluster, until
from tests.cluster.test_launch import CARTPOLE, Notes, host_processes, launched_run
from tests.sites.run_comparison import read_results, run_graph
from tests.toys.toy_runs import toy_graph

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("slurmctld"),
    pytest.mark.skipif(os.geteuid() != 0, reason="this Slurm needs root"),
]
PPO = {"extends": "cartpole_ppo", "nodes": {"collector": {"replicas": 2}}}
TOY = toy_graph(
    {"collector": {"type": "Source", "replicas": 2}, "l": "Learner"},
    ["collector -> l", "l.weights -> collector.weights"],
)
ENDLESS = 1_000_000_000  # train iterations
SNAPSHOTS = {"snapshots": {"every_s": 0.5}}
PAGE = (Path(__file__).parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
[JOB] = re.findall(r"```sh\n(#!/bin/sh\n# job\.sh.*?)```", PAGE, re.S)


in_make_chaos = pytest.mark.skipif(
    "FLOWRL_TESTS_HARM_CLUSTERS" not in os.environ, reason="`make chaos` harms the cluster"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster() as made:
        yield made


def run_on(graph: Any, out: Path, notes: Notes, iters: int, **settings: Any) -> Run:
    launch = {"type": "slurm", "nodes": 2, "partition": "cpu", "time": "10m", **settings}
    limits = Limits(train_iters=iters)
    return launched_run(graph, out, notes, launch, placement="collector=slurm-*", limits=limits)


def nothing_is_left(cluster: SlurmCluster, out: Path) -> None:
    until(lambda: not cluster.jobs(), "a job is left")
    until(lambda: not host_processes(out), "a host is left")


def epoch(out: Path) -> int:
    return int(json.loads((out / "join.json").read_text())["epoch"])


@pytest.mark.parametrize(("graph", "iters"), [(CARTPOLE, 20), (PPO, 4)])
def test_a_job_has_the_bits_of_one_thread(
    cluster: SlurmCluster, tmp_path: Path, graph: Any, iters: int
) -> None:
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=iters)
    notes, out = Notes(), tmp_path / "run"
    assert run_on(graph, out, notes, iters).run().digest == serial["digest"]
    assert any(line.endswith(" is submitted") for line in notes.notes)
    nothing_is_left(cluster, out)
    assert "secret" not in "".join(path.read_text() for path in (out / "hosts").iterdir())


@in_make_chaos
def test_a_job_that_is_cancelled_from_outside_ends_the_run_with_the_cause(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    notes, out = Notes(60, lambda run: cluster.call("scancel", "--user=root")), tmp_path / "run"
    run = run_on({**CARTPOLE, **SNAPSHOTS}, out, notes, 100_000)
    with pytest.raises(FlowError, match=r"launch slurm: job \d+ was cancelled \(scancel\)"):
        run.run()
    nothing_is_left(cluster, out)


def test_an_impossible_job_is_refused_with_the_reason_of_slurm(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    with pytest.raises(HostError, match=r"launch slurm: sbatch: .*[Ii]nvalid partition"):
        run_on(CARTPOLE, tmp_path / "run", Notes(), 20, partition="nowhere").run()


@in_make_chaos
def test_the_job_of_the_page_goes_on_when_it_is_put_back_into_the_queue(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    graph = {**CARTPOLE, "snapshots": {"every_rounds": 5}, "launch": {"type": "slurm", "nodes": 2}}
    (tmp_path / "graph.yaml").write_text(str(graph))
    flowrl = f"{sys.executable} -m flowrl"
    job = JOB.replace("flowrl r", f"{flowrl} r").replace("--quiet", "--quiet --train-iters 1000")
    (tmp_path / "job.sh").write_text(job)
    out = tmp_path / "run"
    number = cluster.call("sbatch", "--parsable", f"--chdir={tmp_path}", str(tmp_path / "job.sh"))
    until(lambda: list(out.glob("snapshots/[0-9]*/manifest.json")), "the run does not begin")
    cluster.call("scancel", "--batch", "--signal=USR1", number)  # as before the time limit
    state = ("squeue", "--noheader", "--format=%T %r")
    until(lambda: cluster.call(*state).startswith("PENDING"), "it is not put back")
    # Slurm waits two minutes. Within a second, a node takes the job for the one that it has just ended.
    cluster.call("scontrol", "update", f"JobId={number}", "StartTime=now+3")
    until(lambda: epoch(out) == 1, "the run is not resumed")
    until(lambda: not cluster.jobs(), "the resumed run does not end")
    serial = run_graph(CARTPOLE, "serial", tmp_path / "s", train_iters=1000)
    results = read_results(out)
    assert (results["digest"], results["status"]) == (serial["digest"], serial["status"])
    nothing_is_left(cluster, out)


@in_make_chaos
@pytest.mark.parametrize("node", NODES[:2])
def test_a_run_goes_on_when_slurm_has_given_up_a_node_whose_host_is_alive(
    tmp_path: Path, node: str
) -> None:
    """Slurm believes a node dead whose daemon is killed. `srun` is on the first node."""
    out = tmp_path / "run"
    with slurm_cluster(node_timeout_s=10) as own:

        def stop_when_it_is_down(run: Run) -> None:
            try:
                until(lambda: own.node_state(node).startswith("down"), "the node is not down")
            finally:
                run.stop()

        def harm(run: Run) -> None:
            own.kill_daemon(node)
            threading.Thread(target=stop_when_it_is_down, args=(run,)).start()

        result = run_on(TOY, out, Notes(60, harm), ENDLESS).run()
        assert own.node_state(node).startswith("down")
        nothing_is_left(own, out)
    assert (result.status, result.recoveries, result.happened) == ("interrupted", 0, ())
    serial = run_graph(TOY, "serial", tmp_path / "s", train_iters=result.train_iters)
    assert result.digest == serial["digest"]


@in_make_chaos
@pytest.mark.parametrize("killed", [("slurmctld",), ("slurmctld", *NODES)], ids=["one", "all"])
def test_a_host_is_killed_and_the_run_recovers_without_the_daemons_of_slurm(
    killed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.cluster.launchers.slurm.POLL_S", 1.0)
    graph, out = {**CARTPOLE, **SNAPSHOTS}, tmp_path / "run"
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=300)
    with slurm_cluster() as own:

        def harm(run: Run) -> None:
            for name in killed:
                own.kill_daemon(name)
            hosts = [line for line in host_processes(out) if "/bin/sh" not in line]
            os.kill(int(hosts[0].split()[0]), signal.SIGKILL)

        notes = Notes(60, harm)
        result = run_on(graph, out, notes, 300).run()
        until(lambda: not host_processes(out), "a host is left")
    assert (result.digest, result.recoveries) == (serial["digest"], 1)
    assert sum("has joined" in note for note in notes.notes) == 3  # the host was started again
