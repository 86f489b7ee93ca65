"""The sites of one run on this host: their listeners, the files that the run has sent, their processes and output."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from flowrl.channels.socket_folder import SocketFolder
from flowrl.cluster.messages import CLOSE_S
from flowrl.core.errors import FlowError
from flowrl.machine.network_address import open_listener
from flowrl.runtime.disturbances import Disturbance, SiteSignal
from flowrl.runtime.sites.graph_transfer import MAX_FILE_BYTES, MAX_MODULE_BYTES
from flowrl.runtime.sites.site_processes import SiteProcesses

READ_BYTES = 64 << 10  # of output, in one call


class HostedSites:
    """Everything that one run has on this host. `close` leaves nothing of it behind."""

    def __init__(self, machine: str) -> None:
        """`machine` is the address at which other machines reach this one."""
        self._machine = machine
        self._folder = SocketFolder()
        self.files = self._folder.path / "files"
        self._listeners: dict[str, socket.socket] = {}
        self._received_bytes = 0
        self._running: list[str] = []
        self.output_fd, self._write_fd = os.pipe()
        os.set_blocking(self.output_fd, False)
        self._processes = SiteProcesses(self._write_fd)

    def open_listeners(self, sites: Iterable[str]) -> dict[str, int]:
        """Listen for each of these sites from now on, and return the ports."""
        ports = {}
        for site in sites:
            if site in self._listeners:  # it was lost, and is started again
                self._listeners[site].close()
            self._listeners[site], ports[site] = open_listener(self._machine)
        return ports

    def write_file_piece(self, path: str, content: bytes) -> None:
        """Append a piece to a file of the run."""
        relative = PurePosixPath(path)
        self._received_bytes += len(content)
        if relative.is_absolute() or ".." in relative.parts:
            raise FlowError(f"the run sent a file for '{path}', which is not in this run's folder")
        if self._received_bytes > MAX_FILE_BYTES + MAX_MODULE_BYTES:
            raise FlowError(
                f"the run sent more than {MAX_FILE_BYTES + MAX_MODULE_BYTES} bytes of files"
            )
        target = self.files / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(content)

    def start(self, config: dict[str, Any], sites: dict[str, Any]) -> None:
        """Start a process for each site."""
        if not sites.keys() <= self._listeners.keys():
            raise FlowError("the run starts other sites than it had announced")
        modules = {name: tuple(map(str, site.pop("imports"))) for name, site in sites.items()}
        for name, site in sites.items():
            epochs = site["epochs"]
            site["address"] = self._folder.address(name, epochs[name])
            site["peers"] = {
                p: at or self._folder.address(p, epochs[p]) for p, at in site["peers"].items()
            }
            site["listener"] = self._listeners[name].fileno()
        fds = [self._listeners[name].fileno() for name in sites]
        self._processes.start({**config, "files": str(self.files)}, sites, modules, fds)
        self._running += sites

    def read_output(self) -> str:
        """Some of what the processes have printed since the last call."""
        try:
            return os.read(self.output_fd, READ_BYTES).decode(errors="replace")
        except BlockingIOError:
            return ""

    def newly_ended(self) -> Iterator[tuple[str, str]]:
        """The sites whose processes have ended since the last call, and why."""
        for name in list(self._running):
            why = self._processes.find_failure(name)
            if why is not None:
                self._running.remove(name)
                yield name, why

    def disturb(self, disturbance: Disturbance) -> None:
        """Send a signal to a site; or stop all of them and this process for a while."""
        if isinstance(disturbance, SiteSignal):
            self._processes.signal(disturbance)
            return
        self._processes.signal_all(signal.SIGSTOP)
        time.sleep(disturbance.seconds)
        self._processes.signal_all(signal.SIGCONT)

    def close(self, within_s: float = CLOSE_S) -> None:
        """Wait until all processes have ended; after `within_s`, kill the rest."""
        self._processes.end(time.monotonic() + within_s)
        for listener in self._listeners.values():
            listener.close()
        os.close(self._write_fd)
        os.close(self.output_fd)
        self._folder.close()
