"""Starts hosts as processes of the run's own machine: the way of a cluster, on a laptop."""

from __future__ import annotations

import sys

from flowrl.cluster.host_commands import HostCommand, HostCommands
from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.core.config import param

LOOPBACK = "127.0.0.1"


class Local(Launcher):
    """Hosts that are processes of the machine where the run was started."""

    class Config(Launcher.Config):
        hosts: int = param(2, "how many hosts are started", ge=1, le=1000)
        restarts: int = param(3, "how often a host that has died is started again", ge=0, le=1000)

    commands: HostCommands

    @property
    def host_count(self) -> int:
        return int(self.config.hosts)

    def machine_of_run(self) -> str:
        return LOOPBACK

    def start(self, order: HostOrder) -> None:
        words = order.command([sys.executable], str(order.join_file))
        logs = [order.folder / f"{order.label}.{n}.log" for n in range(self.host_count)]
        self.commands = HostCommands(
            [HostCommand(f"host process {n}", words, log) for n, log in enumerate(logs)],
            self.config.restarts,
        )
        self.commands.start()

    def watch(self) -> LaunchStatus:
        return self.commands.watch()

    def end(self) -> None:
        self.commands.end()
