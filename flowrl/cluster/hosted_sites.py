"""The sites of a run on this host: where they are reached, what they were sent, their processes and prints."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from flowrl.channels.socket_folder import SocketFolder
from flowrl.cluster.control import LEAVE_S
from flowrl.core.errors import FlowError
from flowrl.machine.network_address import open_listener
from flowrl.runtime.sites.graph_transfer import FILE_BYTES, MODULE_BYTES
from flowrl.runtime.sites.site_processes import SiteProcesses

PRINTED_BYTES = 64 << 10  # that are read at once


class HostedSites:
    """What one run has here; gone when it is closed."""

    def __init__(self, machine: str) -> None:
        """`machine`: the address under which others reach this one."""
        self._machine = machine
        self._folder = SocketFolder()
        self._doors: dict[str, socket.socket] = {}
        self._received_bytes = 0
        self._running: list[str] = []
        self.printing, self._print_to = os.pipe()
        os.set_blocking(self.printing, False)
        self._processes = SiteProcesses(self._print_to)

    def listen(self, sites: list[Any]) -> dict[str, int]:
        """Somebody is awaited for each of these from now on; the ports."""
        ports = {}
        for site in sites:
            self._doors[str(site)], ports[str(site)] = open_listener(self._machine)
        return ports

    def file(self, name: str, piece: bytes) -> None:
        """A piece of a file that the run has sent."""
        path = PurePosixPath(name)
        self._received_bytes += len(piece)
        if path.is_absolute() or ".." in path.parts:
            raise FlowError(f"the run sent a file for '{name}', which is not in this run's folder")
        if self._received_bytes > FILE_BYTES + MODULE_BYTES:
            raise FlowError(f"the run sent more than {FILE_BYTES + MODULE_BYTES} bytes of files")
        there = self._files / path
        there.parent.mkdir(parents=True, exist_ok=True)
        with there.open("ab") as file:
            file.write(piece)

    @property
    def _files(self) -> Path:
        return self._folder.path / "files"

    def start(self, told: dict[str, Any], sites: dict[str, Any]) -> None:
        """A process for each site."""
        if sites.keys() != self._doors.keys():
            raise FlowError("the run starts other sites than it had asked for")
        modules = {name: tuple(map(str, site.pop("imports"))) for name, site in sites.items()}
        for name, site in sites.items():
            peers = {p: at or self._folder.address(p) for p, at in site["peers"].items()}
            door = self._doors[name].fileno()
            site.update(address=self._folder.address(name), peers=peers, listener=door)
        fds = [door.fileno() for door in self._doors.values()]
        self._processes.start({**told, "files": str(self._files)}, sites, modules, fds)
        self._running = list(sites)

    def printed(self) -> str:
        """Some of what the processes have printed and nobody has read."""
        try:
            return os.read(self.printing, PRINTED_BYTES).decode(errors="replace")
        except BlockingIOError:
            return ""

    def ended(self) -> Iterator[tuple[str, str]]:
        """The sites whose processes have ended meanwhile, and why."""
        for name in list(self._running):
            why = self._processes.why_ended(name)
            if why is not None:
                self._running.remove(name)
                yield name, why

    def close(self, within_s: float = LEAVE_S) -> None:
        """End everything, in bounded time, and leave nothing behind."""
        self._processes.end(time.monotonic() + within_s)
        for door in self._doors.values():
            door.close()
        os.close(self._print_to)
        os.close(self.printing)
        self._folder.close()
