"""Each launcher with what it needs on this machine, for tests that do the same to the hosts of all of them.

Some launchers can also start their hosts on machines of a network (`tests/cluster/network.py`), which can be cut off.
"""

from __future__ import annotations

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubernetes_server import ONE_NODE, KubernetesServer
from tests.cluster.network import MACHINES, Network, Place
from tests.cluster.slurm import SlurmCluster, slurm_cluster, until
from tests.cluster.ssh_servers import SshServers, ssh_servers
from tests.cluster.test_launch import host_processes

HOSTS = ("a", "b")  # the machines of a network on which hosts are
NODE_TIMEOUT_S = 10  # after which Slurm takes a node for dead


class LauncherCase(ABC):
    """A launcher that starts two hosts on this machine."""

    def __init__(self, folder: Path, net: Network | None = None) -> None:
        """With a network, each host is on a machine of its own, and the run on the one that is called `run`."""
        self.folder, self.net = folder, net
        self.out = folder / "run"  # the folder of the run
        self.signalled: list[int] = []  # the process ids of a host and its sites

    @property
    def listen(self) -> str | None:
        """Where the run listens for its hosts."""
        return None if self.net is None else f"tcp://{MACHINES['run']}:*"

    def cut_off(self, machine: str) -> None:
        """Cut a machine off from all others. What runs there goes on."""
        assert self.net is not None
        self.net.cable(machine, "down")

    def reconnect(self, machine: str) -> None:
        assert self.net is not None
        self.net.cable(machine, "up")

    @abstractmethod
    def launch(self) -> dict[str, Any]:
        """The `launch` section of the run."""

    @abstractmethod
    def hosts(self) -> list[int]:
        """The process ids of the hosts that are alive, without their sites."""

    def signal_a_host(self, number: int) -> None:
        """Send a signal to the first host and its sites, as if it came from their machine."""
        host = self.hosts()[0]
        self.signalled = [host, *descendants(host)]
        for pid in self.signalled:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def resume_the_host(self) -> None:
        """Let the processes continue that were stopped."""
        for pid in self.signalled:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def nothing_is_left(self) -> None:
        until(lambda: not self.hosts(), "a host is left")


class LocalCase(LauncherCase):
    def launch(self) -> dict[str, Any]:
        return {"type": "local"}

    def hosts(self) -> list[int]:
        return [int(line.split()[0]) for line in host_processes(self.out)]


class SshCase(LauncherCase):
    def __init__(self, folder: Path, servers: SshServers, net: Network | None = None) -> None:
        super().__init__(folder, net)
        self.servers = servers

    def launch(self) -> dict[str, Any]:
        settings = {"machines": self.servers.machines, "python": sys.executable}
        return {"type": "ssh", **settings, "options": self.servers.options()}

    def hosts(self) -> list[int]:
        found = [p for server in self.servers.servers for p in descendants(server.pid)]
        return [pid for pid in found if " -m flowrl host" in command_of(pid)]


class KubernetesCase(LauncherCase):
    def __init__(self, folder: Path, server: KubernetesServer, net: Network | None = None) -> None:
        super().__init__(folder, net)
        self.server = server

    def launch(self) -> dict[str, Any]:
        address = "127.0.0.1" if self.net is None else MACHINES["run"]
        return {"type": "kubernetes", "image": "an-image", "address": address}

    def hosts(self) -> list[int]:
        found = self.server.processes()
        return [pid for top in found for pid in (top, *descendants(top)) if is_host(pid)]

    def cut_off(self, machine: str) -> None:
        super().cut_off(machine)
        self.server.cut_off(machine)

    def reconnect(self, machine: str) -> None:
        super().reconnect(machine)
        self.server.reconnect(machine)

    def nothing_is_left(self) -> None:
        super().nothing_is_left()
        assert not self.server.jobs
        assert not self.server.secrets


class SlurmCase(LauncherCase):
    def __init__(self, folder: Path, cluster: SlurmCluster, net: Network | None = None) -> None:
        super().__init__(folder, net)
        self.cluster = cluster

    def launch(self) -> dict[str, Any]:
        return {"type": "slurm", "nodes": 2, "partition": "cpu", "time": "10m"}

    def hosts(self) -> list[int]:
        found = [int(line.split()[0]) for line in host_processes(self.out)]
        return [pid for pid in found if is_host(pid)]

    def nothing_is_left(self) -> None:
        super().nothing_is_left()
        until(lambda: not self.cluster.jobs(), "a job is left")


@contextmanager
def local_case(folder: Path) -> Iterator[LauncherCase]:
    yield LocalCase(folder)


@contextmanager
def ssh_case(folder: Path, net: Network | None = None) -> Iterator[LauncherCase]:
    places = [Place()] * 2 if net is None else [net.place(machine) for machine in HOSTS]
    with ssh_servers(folder / "ssh", environment={"PYTHONPATH": os.getcwd()}, places=places) as s:
        yield SshCase(folder, s, net)


@contextmanager
def kubernetes_case(folder: Path, net: Network | None = None) -> Iterator[LauncherCase]:
    (folder / "cluster").mkdir()
    nodes = ONE_NODE if net is None else {machine: net.enter(machine) for machine in HOSTS}
    server = KubernetesServer(folder / "cluster", nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(server.kubeconfig()))
        patch.setattr("flowrl.cluster.launchers.kubernetes.POLL_S", 0.0)
        yield KubernetesCase(folder, server, net)
    server.close()


@contextmanager
def slurm_case(folder: Path, net: Network | None = None) -> Iterator[LauncherCase]:
    if net is None:
        with slurm_cluster() as cluster:
            yield SlurmCase(folder, cluster)
    else:
        nodes = {machine: net.place(machine) for machine in HOSTS}
        with slurm_cluster(net.place("run"), nodes, NODE_TIMEOUT_S) as cluster:
            yield SlurmCase(folder, cluster, net)


NETWORK_CASES: dict[str, Callable[..., AbstractContextManager[LauncherCase]]] = {
    "ssh": ssh_case,
    "kubernetes": kubernetes_case,
    "slurm": slurm_case,
}
CASES = {"local": local_case, **NETWORK_CASES}


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return ""


def is_host(pid: int) -> bool:
    """Whether this process is a host, and not the shell that started it."""
    return " -m flowrl host" in command_of(pid) and "/sh " not in command_of(pid)


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [found for child in map(int, children) for found in (child, *descendants(child))]
    return []
