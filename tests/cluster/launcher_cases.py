"""Each launcher with what it needs on this machine, for tests that do the same to the hosts of all of them."""

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

from tests.cluster.kubernetes_server import KubernetesServer
from tests.cluster.slurm import SlurmCluster, slurm_cluster, until
from tests.cluster.ssh_servers import SshServers, ssh_servers
from tests.cluster.test_launch import host_processes


class LauncherCase(ABC):
    """A launcher that starts two hosts on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "run"  # the folder of the run

    @abstractmethod
    def launch(self) -> dict[str, Any]:
        """The `launch` section of the run."""

    @abstractmethod
    def hosts(self) -> list[int]:
        """The process ids of the hosts that are alive, without their sites."""

    def nothing_is_left(self) -> None:
        until(lambda: not self.hosts(), "a host is left")


class LocalCase(LauncherCase):
    def launch(self) -> dict[str, Any]:
        return {"type": "local"}

    def hosts(self) -> list[int]:
        return [int(line.split()[0]) for line in host_processes(self.out)]


class SshCase(LauncherCase):
    def __init__(self, folder: Path, servers: SshServers) -> None:
        super().__init__(folder)
        self.servers = servers

    def launch(self) -> dict[str, Any]:
        settings = {"machines": self.servers.machines, "python": sys.executable}
        return {"type": "ssh", **settings, "options": self.servers.options()}

    def hosts(self) -> list[int]:
        found = [p for server in self.servers.servers for p in descendants(server.pid)]
        return [pid for pid in found if " -m flowrl host" in command_of(pid)]


class KubernetesCase(LauncherCase):
    def __init__(self, folder: Path, server: KubernetesServer) -> None:
        super().__init__(folder)
        self.server = server

    def launch(self) -> dict[str, Any]:
        return {"type": "kubernetes", "image": "an-image", "address": "127.0.0.1"}

    def hosts(self) -> list[int]:
        found = [pod.process.pid for pod in self.server.alive() if pod.process is not None]
        return [pid for top in found for pid in (top, *descendants(top)) if is_host(pid)]

    def nothing_is_left(self) -> None:
        super().nothing_is_left()
        assert not self.server.jobs
        assert not self.server.secrets


class SlurmCase(LauncherCase):
    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        super().__init__(folder)
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
def ssh_case(folder: Path) -> Iterator[LauncherCase]:
    with ssh_servers(folder / "ssh", 2, {"PYTHONPATH": os.getcwd()}) as servers:
        yield SshCase(folder, servers)


@contextmanager
def kubernetes_case(folder: Path) -> Iterator[LauncherCase]:
    (folder / "cluster").mkdir()
    server = KubernetesServer(folder / "cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(server.kubeconfig()))
        patch.setattr("flowrl.cluster.launchers.kubernetes.LOOK_S", 0.0)
        yield KubernetesCase(folder, server)
    server.close()


@contextmanager
def slurm_case(folder: Path) -> Iterator[LauncherCase]:
    with slurm_cluster() as cluster:
        yield SlurmCase(folder, cluster)


CASES: dict[str, Callable[[Path], AbstractContextManager[LauncherCase]]] = {
    "local": local_case,
    "ssh": ssh_case,
    "kubernetes": kubernetes_case,
    "slurm": slurm_case,
}


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


def signal_host(pid: int, number: int) -> list[int]:
    """Send a signal to a host and its sites, as if it came from their machine. Return their process ids."""
    pids = [pid, *descendants(pid)]
    for one in pids:
        with suppress(ProcessLookupError):
            os.kill(one, number)
    return pids


def resume(pids: list[int]) -> None:
    """Let processes continue that were stopped."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
