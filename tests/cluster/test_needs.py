"""Runs whose nodes need something of the machines on which they are put."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check, check_placed
from flowrl.core.batch import Batch
from flowrl.core.context import instance_key
from flowrl.core.errors import UsageError
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.graph import site_layout
from flowrl.graph.loading import load_data, load_graph
from flowrl.graph.model import Limits
from flowrl.machine.resources import MachineResources
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from tests.cluster.host_processes import HostStarter, run_of
from tests.sites.run_comparison import run_graph
from tests.toys.toy_runs import toy_graph

THREE_GPUS = "import flowrl.machine.resources as r; r.usable_gpus = lambda: ('3', '5', '7')"


class GpuReporter(Node):
    """Passes batches on, and prints which GPUs its process sees."""

    data = In("samples")
    out = Out("samples")

    def fire(self, data: Batch) -> Batch:
        instance = instance_key(self.ctx.name, self.ctx.replica)
        print(f"{instance} sees {os.environ.get('CUDA_VISIBLE_DEVICES')}", flush=True)
        return data


def reporting(placement: dict[str, Any]) -> dict[str, Any]:
    reporter = {"type": "tests.cluster.test_needs:GpuReporter"}
    nodes = {"c": "Source", "r": {**reporter, "replicas": 2}, "s": reporter, "l": "Learner"}
    graph = toy_graph(nodes, ["c -> r -> s -> l", "l.weights -> c.weights"])
    return {**graph, "placements": {"p": placement}}


def seen(text: str) -> dict[str, str]:
    return dict(re.findall(r"(\S+) sees (\S+)", text))


class Notes(Watcher):
    """Keeps what the run notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, run: Run, text: str) -> None:
        self.lines.append(text)


def local_run(placement: dict[str, Any], out: Path, watcher: Watcher | None = None) -> Run:
    return Run(
        check(load_data(reporting(placement))),
        placement="p",
        out=out,
        limits=Limits(train_iters=2),
        watcher=watcher,
    )


@pytest.mark.slow
def test_each_process_sees_the_gpus_that_it_was_given(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    here = MachineResources(1, 10**9, ("2", "5"))
    monkeypatch.setattr(site_layout, "machine_resources", lambda: here)
    placement = {"r": {"gpus": 1, "cores": 1, "spread": True}, "s": "process"}
    watcher = Notes()
    result = local_run(placement, tmp_path / "r", watcher).run()
    assert seen(capfd.readouterr().err) == {"r": "2", "r#1": "5", "s": "2,5"}
    warnings = [
        "placement: the nodes on this machine need 2 cores, and it has 1; the run will be slower",
        "placement: 2 replicas of r need 1 GPU, 1 core each, each on another host; "
        "without hosts, all are on this machine",
    ]
    assert list(result.warnings) == warnings
    assert [f"warning: {line}" for line in warnings] == watcher.lines[:2]


def test_gpus_that_this_machine_lacks_are_an_error_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_layout, "machine_resources", lambda: MachineResources(8, 10**9))
    with pytest.raises(UsageError, match="placement: l needs 1 GPU; this machine has 8 cores"):
        local_run({"l": {"gpus": 1}}, tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_nodes_are_put_on_hosts_that_have_what_they_need(tmp_path: Path) -> None:
    graph = reporting({"r": {"gpus": 1}, "s": {"place": "a", "gpus": 1}})
    serial = run_graph(graph, "serial", tmp_path / "serial", train_iters=2)
    with HostStarter(("--name", "a"), code=THREE_GPUS) as watcher:
        run = run_of(graph, "p", tmp_path / "r", watcher, train_iters=2)
        result = run.run()
        [(code, out)] = watcher.wait()
    assert code == 0
    assert seen(out) == {"r": "3", "r#1": "5", "s": "7"}
    assert run.sites.layout.hosts.keys() == {"a:r", "a:r#1", "a:s"}
    assert result.digest == serial["digest"]
    assert any("GPUs" in note for note in watcher.notes if "has joined" in note)


def test_a_device_that_only_a_host_has_is_no_problem_of_this_machine() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    loaded = load_graph("cartpole_dqn", {"learner.device": "cuda", "collector.device": "auto"})
    checked = check_placed(loaded, "learner=gpu-*", has_hosts=True)
    devices = {n: checked.graph.nodes[n].config.device for n in ("learner", "collector")}
    assert checked.ok
    assert devices == {"learner": "cuda", "collector": "cpu"}  # the collector runs here
    [problem] = check_placed(loaded, "learner=gpu-*", has_hosts=False).problems
    assert "device 'cuda'" in problem.what


def test_what_auto_means_is_decided_where_the_node_runs() -> None:
    loaded = load_graph("cartpole_dqn", {"learner.device": "auto"})
    checked = check_placed(loaded, "learner=gpu-*", has_hosts=True)
    assert checked.graph.nodes["learner"].config.device == "auto"
