"""Runs on real ssh servers: bits, faults, refusals in words, an installation, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowrl.cluster.joined_host import HostError
from flowrl.cluster.launchers.own_wheel import needed_packages
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from tests.cluster.slurm import until
from tests.cluster.ssh_servers import SshServers, ssh_servers
from tests.cluster.test_launch import CARTPOLE, Notes, launched_run
from tests.sites.run_comparison import run_graph

pytestmark = [pytest.mark.slow, pytest.mark.needs("sshd")]
PPO = {"extends": "cartpole_ppo", "nodes": {"collector": {"replicas": 2}}}
SNAPSHOTS = {"snapshots": {"every_s": 0.5}}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServers]:
    with ssh_servers(tmp_path_factory.mktemp("ssh"), 3) as made:
        yield made


def launch(servers: SshServers, **settings: Any) -> dict[str, Any]:
    return {
        "type": "ssh",
        "machines": servers.machines[:2],
        "python": sys.executable,
        "options": servers.options(),
        **settings,
    }


def run_on(
    servers: SshServers, graph: Any, out: Path, notes: Notes, iters: int, **settings: Any
) -> Run:
    placement, limits = "collector=ssh-*", Limits(train_iters=iters)
    return launched_run(
        graph, out, notes, launch(servers, **settings), placement=placement, limits=limits
    )


def far_hosts() -> list[int]:
    """The hosts that were started through ssh, without their sites."""
    found = subprocess.run(
        ["pgrep", "-f", "flowrl host --join - "], capture_output=True, text=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


def nothing_is_left(servers: SshServers) -> None:
    until(lambda: not far_hosts(), "a host is left")
    until(lambda: not servers.connections(), "a connection is left")


@pytest.mark.parametrize(("graph", "iters"), [(CARTPOLE, 20), (PPO, 4)])
def test_machines_have_the_bits_of_one_thread(
    servers: SshServers, tmp_path: Path, graph: Any, iters: int
) -> None:
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=iters)
    run = run_on(servers, graph, tmp_path / "run", Notes(), iters, machines=servers.machines)
    assert run.run().digest == serial["digest"]
    nothing_is_left(servers)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_run_recovers_from_a_host_that_is_killed_or_stopped(
    servers: SshServers, tmp_path: Path, fault: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.cluster.joined_hosts.SILENCE_S", 3.0)
    graph = {**CARTPOLE, **SNAPSHOTS}
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=300)
    notes = Notes(60, lambda run: os.kill(far_hosts()[0], fault))
    run = run_on(servers, graph, tmp_path / "run", notes, 300)
    assert run.sites.rendezvous is not None
    run.sites.rendezvous = replace(run.sites.rendezvous, within_s=10)  # for one that is stopped
    result = run.run()
    assert result.digest == serial["digest"]
    # the sites of a host that is stopped go on, so the run may be over before it is missed
    assert result.recoveries == 1 or fault == signal.SIGSTOP
    nothing_is_left(servers)


def test_a_connection_that_is_cut_ends_the_host_at_its_other_end(
    servers: SshServers, tmp_path: Path
) -> None:
    before: list[int] = []

    def cut(run: Run) -> None:
        before.extend(far_hosts())
        for pid in servers.connections():
            os.kill(pid, signal.SIGKILL)

    graph = {**CARTPOLE, **SNAPSHOTS}
    serial = run_graph(graph, "serial", tmp_path / "s", train_iters=300)
    notes = Notes(60, cut)
    assert run_on(servers, graph, tmp_path / "run", notes, 300).run().digest == serial["digest"]
    assert any("starting it again in 1 s (1 of 3)" in line for line in notes.notes)
    assert not set(before) & set(far_hosts())
    nothing_is_left(servers)


def test_hosts_end_when_the_process_of_their_run_is_killed(
    servers: SshServers, tmp_path: Path
) -> None:
    words = [
        "run",
        "cartpole_dqn",
        "--set",
        "collector.replicas=2",
        "--placement",
        "collector=ssh-*",
    ]
    words += ["--launch", json.dumps(launch(servers)), "--out", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "flowrl", *words])
    until(lambda: len(far_hosts()) == 2, "no hosts are there")
    process.kill()
    process.wait()
    nothing_is_left(servers)


def test_what_cannot_work_is_told_with_what_helps(servers: SshServers, tmp_path: Path) -> None:
    tests: list[tuple[dict[str, Any], str]] = [
        ({"options": servers.options(servers.other_key)}, "Permission denied .*ssh-copy-id"),
        (
            {"options": servers.options(known_hosts="none")},
            "its host key is unknown or has changed",
        ),
        ({"python": "/nowhere/python"}, "there is no /nowhere/python on it"),
    ]
    for number, (settings, expected) in enumerate(tests):
        run = run_on(servers, CARTPOLE, tmp_path / str(number), Notes(), 20, **settings)
        with pytest.raises(HostError, match=expected):
            run.run()
    nothing_is_left(servers)


def package(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A wheel of a package, for an index that is a folder."""
    info = f"{name}-{version}.dist-info"
    about = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, **about}.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.exhaustive  # pip installs packages, one by one
def test_flowrl_is_installed_where_only_python_is(tmp_path: Path) -> None:
    """The index of the machine has packages that are empty, but for one that finds the true ones."""
    index = tmp_path / "index"
    index.mkdir()
    for requirement in needed_packages([]):
        name, version = requirement.split("==")
        files = {"true.pth": sysconfig.get_paths()["purelib"] + "\n"} if name == "torch" else {}
        package(index, name.replace("-", "_"), version, files)
    machine = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "XDG_CACHE_HOME": str(tmp_path)}
    with ssh_servers(tmp_path / "ssh", 1, machine) as servers:
        python = getattr(sys, "_base_executable", sys.executable)
        settings = {"machines": servers.machines, "python": python, "install": True}
        settings["hosts_per_machine"] = 2
        serial = run_graph(CARTPOLE, "serial", tmp_path / "s", train_iters=20)
        for number in range(2):
            notes, out = Notes(), tmp_path / f"run{number}"
            result = run_on(servers, CARTPOLE, out, notes, 20, **settings).run()
            assert result.digest == serial["digest"]
            assert any("installing flowrl" in note for note in notes.notes) == (number == 0)
        [venv] = (tmp_path / "flowrl" / "venvs").glob("*/installed")
        (venv.parent / "installed").unlink()
        next(index.glob("torch-*")).unlink()
        run = run_on(servers, CARTPOLE, tmp_path / "last", Notes(), 20, **settings)
        with pytest.raises(
            HostError, match=r"pip install failed: .*No matching distribution found for torch=="
        ):
            run.run()
        nothing_is_left(servers)
