"""Hosts that are actors of Ray. The slow tests need the package, and start a cluster of three machines on this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flowrl.cluster.join_file import JoinInfo, RunIdentity
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.cluster.launcher import HostOrder
from flowrl.cluster.launchers.ray import Ray
from flowrl.cluster.ray.host_actor import HostActor
from flowrl.core.errors import FlowError, GraphError
from flowrl.graph.launch import load_launch
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from tests.cluster.launcher_cases import descendants
from tests.cluster.test_launch import Notes, host_processes, launched_run
from tests.cluster.test_launched_hosts import until
from tests.sites.run_comparison import run_graph

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the package ray is not installed")
OPTIONS = ("--name", "ray-*", "--within", "0.1s")


def order_in(folder: Path) -> HostOrder:
    info = JoinInfo("tcp://127.0.0.1:9", RunIdentity("r-1", 0))
    return HostOrder(info, folder / "join.json", folder, "ray", "run", OPTIONS)


def test_an_order_says_what_each_bundle_has(tmp_path: Path) -> None:
    launcher = Ray(hosts=3, cpus=2, memory_gb=1.5, resources={"big": 1}, spread=False)
    order = launcher._order_of_driver(order_in(tmp_path))
    assert order["bundle"] == {"CPU": 2, "big": 1, "memory": 1_500_000_000}
    assert (order["hosts"], order["strategy"]) == (3, "SPREAD")


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.cluster.launchers.ray.find_spec", lambda _: None)
    monkeypatch.setattr("flowrl.cluster.launched_hosts.WATCH_S", 0.01)
    hosts = LaunchedHosts({"ray": (Ray(), order_in(tmp_path))})
    until(lambda: hosts.failure)
    assert (
        hosts.failure == "launch ray: the package ray is not installed; pip install 'flowrl[ray]'"
    )
    hosts.end()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("{type: ray, hosts: 0}", "--launch.hosts is 0"),
        ("{type: ray, cpu: 1}", "unknown key 'cpu'; did you mean 'cpus'?"),
        ("{type: ray, memory_gb: 4Gi}", "--launch.memory_gb"),
    ],
)
def test_wrong_settings_are_refused(given: str, text: str) -> None:
    with pytest.raises(GraphError) as error:
        load_launch(given)
    assert text in str(error.value)


@pytest.mark.slow
def test_an_actor_tells_how_its_host_has_ended_and_what_it_printed(tmp_path: Path) -> None:
    actor = HostActor(order_in(tmp_path).info.text(), OPTIONS)
    deadline, printed = time.monotonic() + 60, ""
    end, ended_well = "", True
    while not end:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        end, ended_well, text = actor.take_report()
        printed += text
    assert (end, ended_well) == ("ended with status 1", False)
    assert "no run was there within" in printed
    actor.end_host()


# a cluster of Ray


@contextmanager
def ray_cluster(folder: Path) -> Iterator[Any]:
    """Three machines with a core each."""
    with pytest.MonkeyPatch.context() as patch:
        token = folder / "token"
        token.write_text("a" * 64)
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_worker_niceness", "0")  # with Ray's 15, other programs come before hosts
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.getcwd(), *sys.path])))
        from ray.cluster_utils import Cluster

        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        for _ in range(2):
            made.add_node(num_cpus=1)
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with ray_cluster(tmp_path_factory.mktemp("ray")) as made:
        yield made


def run_on_ray(cluster: Any, name: str, out: Path, notes: Notes, iters: int) -> Run:
    graph = graph_of(name)
    launch = {"type": "ray", "cluster": cluster.address, "address": "127.0.0.1"}
    return launched_run(
        graph, out, notes, launch, placement="collector=ray-*", limits=Limits(train_iters=iters)
    )  # fmt: skip


def graph_of(name: str) -> dict[str, Any]:
    return {"extends": name, "nodes": {"collector": {"replicas": 2}}, "snapshots": {"every_s": 0.5}}


def hosts_of_ray() -> list[int]:
    return [int(line.split()[0]) for line in host_processes(Path("--name ray-"))]


def busy_machine(cluster: Any) -> Any:
    """A machine, other than the head, whose raylet has started a host."""
    hosts = set(hosts_of_ray())
    raylets = {node: node.all_processes["raylet"][0].process.pid for node in cluster.worker_nodes}
    return next(node for node, pid in raylets.items() if hosts & set(descendants(pid)))


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(("name", "iters"), [("cartpole_dqn", 60), ("cartpole_ppo", 4)])
def test_a_run_on_ray_has_the_bits_of_serial(
    tmp_path: Path, cluster: Any, name: str, iters: int
) -> None:
    serial = run_graph(graph_of(name), "serial", tmp_path / "s", train_iters=iters)
    run = run_on_ray(cluster, name, tmp_path / "run", Notes(), iters)
    assert run.run().digest == serial["digest"]
    assert not hosts_of_ray()
    assert "joined the run" in (tmp_path / "run" / "hosts" / "ray.0.log").read_text()


@needs_ray
@pytest.mark.slow
def test_a_host_on_ray_that_is_killed_is_started_again(tmp_path: Path, cluster: Any) -> None:
    serial = run_graph(graph_of("cartpole_dqn"), "serial", tmp_path / "s", train_iters=150)
    notes = Notes(40, lambda _: os.kill(hosts_of_ray()[0], signal.SIGKILL))
    run = run_on_ray(cluster, "cartpole_dqn", tmp_path / "run", notes, 150)
    assert run.run().digest == serial["digest"]
    assert any("was killed by SIGKILL" in line and "(1 of 3)" in line for line in notes.notes)
    assert not hosts_of_ray()


@needs_ray
@pytest.mark.slow
def test_a_run_goes_on_when_a_machine_of_the_cluster_is_lost(tmp_path: Path, cluster: Any) -> None:
    """Its host ends, and Ray starts the actor again on the machine that has none. Then it is there again."""
    serial = run_graph(graph_of("cartpole_dqn"), "serial", tmp_path / "s", train_iters=150)

    def lose_machine(run: Run) -> None:
        cluster.remove_node(busy_machine(cluster), allow_graceful=False)
        cluster.add_node(num_cpus=1, wait=False)

    run = run_on_ray(cluster, "cartpole_dqn", tmp_path / "run", Notes(40, lose_machine), 150)
    result = run.run()
    assert (result.digest, result.recoveries) == (serial["digest"], 1)
    assert not hosts_of_ray()


@needs_ray
@pytest.mark.slow
def test_nothing_is_left_of_a_launcher_that_is_killed(tmp_path: Path, cluster: Any) -> None:
    launcher = Ray(hosts=2, cluster=cluster.address, rejoin="10m")
    info = JoinInfo("tcp://127.0.0.1:9", RunIdentity("r-1", 0))
    options = ("--name", "ray-*", "--within", "10m")
    launcher.start(HostOrder(info, tmp_path / "join.json", tmp_path, "ray", "run", options))
    deadline = time.monotonic() + 120
    while len(hosts_of_ray()) < 2:
        assert time.monotonic() < deadline
        assert not launcher.watch().failure
        time.sleep(0.1)
    assert launcher._process is not None
    launcher._process.kill()
    while hosts_of_ray():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert launcher.watch().failure.startswith("Ray is lost: ")
    launcher.end()


@needs_ray
@pytest.mark.slow
def test_a_run_does_not_need_the_head_of_the_cluster(tmp_path: Path, cluster: Any) -> None:
    """This is the last test of the cluster, which is lost with its head."""
    serial = run_graph(graph_of("cartpole_dqn"), "serial", tmp_path / "s", train_iters=100)
    head = cluster.head_node
    notes = Notes(40, lambda _: head.kill_gcs_server())
    run = run_on_ray(cluster, "cartpole_dqn", tmp_path / "run", notes, 100)
    assert run.run().digest == serial["digest"]


@needs_ray
@pytest.mark.slow
@pytest.mark.skipif(
    "FLOWRL_TESTS_HARM_CLUSTERS" not in os.environ,
    reason="`make chaos` harms the cluster: `ray stop` ends all of Ray on this machine",
)
def test_a_cluster_that_is_stopped_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    def stop(run: Run) -> None:
        words = [sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"]
        subprocess.run(words, check=True, capture_output=True)

    with ray_cluster(tmp_path) as cluster:
        run = run_on_ray(cluster, "cartpole_dqn", tmp_path / "run", Notes(40, stop), 2000)
        with pytest.raises(FlowError, match="launch ray: "):
            run.run()
        assert not hosts_of_ray()
