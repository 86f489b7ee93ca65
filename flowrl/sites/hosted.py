"""The sites of a run on this host: their folder, where they are reached, their processes and what these print."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from flowrl.channels.folder import SocketFolder
from flowrl.errors import FlowError
from flowrl.sites.control import LEAVE_S
from flowrl.sites.processes import Process, door_at, end, start_process, why_ended

RECEIVED_BYTES = (1 << 30) + (64 << 20)  # of all files together: a little more than a run may send
PRINTED_BYTES = 64 << 10  # that are read at once


class Hosted:
    """What one run has here; gone when it is closed."""

    def __init__(self, machine: str) -> None:
        """`machine`: the address under which others reach this one."""
        self._machine = machine
        self._folder = SocketFolder()
        self._doors: dict[str, socket.socket] = {}
        self._processes: dict[str, Process] = {}
        self._received = 0

    def listen(self, sites: list[Any]) -> dict[str, int]:
        """Somebody listens for each of these from now on; the ports."""
        ports = {}
        for site in sites:
            self._doors[str(site)], ports[str(site)] = door_at(self._machine)
        return ports

    def file(self, name: str, piece: bytes) -> None:
        """A piece of a file that the run has sent."""
        path = PurePosixPath(name)
        self._received += len(piece)
        if path.is_absolute() or ".." in path.parts or self._received > RECEIVED_BYTES:
            raise FlowError(f"the run sent the file '{name}' ({self._received} bytes in all)")
        there = self._files / path
        there.parent.mkdir(parents=True, exist_ok=True)
        with there.open("ab") as file:
            file.write(piece)

    @property
    def _files(self) -> Path:
        return self._folder.path / "files"

    def start(self, common: Mapping[str, Any], told: list[Any]) -> None:
        """A process for each site."""
        names = {one["name"] for one in told}
        if names != set(self._doors):
            raise FlowError("the run starts other sites than it had asked for")
        for one in told:
            name = one["name"]
            peers = {p: at or self._folder.address(p) for p, at in one["peers"].items()}
            words = {
                **common,
                **one,
                "peers": peers,
                "near": self._folder.address(name),
                "files": str(self._files),
            }
            door = self._doors.pop(name)
            process = self._processes[name] = start_process(words, subprocess.PIPE, door)
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)

    def pipes(self) -> dict[int, str]:
        """Where the processes print, and whose that is."""
        found = ((p.stdout, name) for name, p in self._processes.items())
        return {pipe.fileno(): name for pipe, name in found if pipe and not pipe.closed}

    def printed(self, site: str) -> str:
        """Some of what a process has printed and nobody has read."""
        pipe = self._processes[site].stdout
        if pipe is None or pipe.closed:
            return ""
        try:
            data = os.read(pipe.fileno(), PRINTED_BYTES)
        except BlockingIOError:
            return ""
        if not data:
            pipe.close()
        return data.decode(errors="replace")

    def ended(self) -> Iterator[tuple[str, str, str]]:
        """The processes that have ended: which, its last words, and why."""
        for name, process in list(self._processes.items()):
            if process.poll() is not None:
                last = self.printed(name)
                if process.stdout is not None:
                    process.stdout.close()  # a child of its own may still hold the other end
                del self._processes[name]
                yield name, last, why_ended(process.returncode)

    def close(self) -> None:
        """End everything, in bounded time, and leave nothing behind."""
        deadline = time.monotonic() + LEAVE_S
        for door in self._doors.values():
            door.close()
        for process in self._processes.values():
            end(process, deadline)
            if process.stdout is not None:
                process.stdout.close()
        self._folder.close()
