"""Starting sites, talking with them, and ending them, whatever state they are in."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from flowrl.channels import InboxRegistry, Sender, SiteChannels, SiteConnections
from flowrl.channels.socket_folder import SocketFolder
from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import FlowError, NodeError
from flowrl.graph.expand import expand
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.network_address import listening, tcp
from flowrl.machine.open_files import allow_files
from flowrl.runtime.control.messages import DOWN, FAILED, UP, RemoteTraceback, raised_there
from flowrl.runtime.control.orders import CONTROL
from flowrl.runtime.processes.addresses import Addresses, neighbours
from flowrl.runtime.processes.site_processes import SiteProcesses, loads_of
from flowrl.runtime.site import SiteScheduler, run_site

if TYPE_CHECKING:
    from flowrl.cluster.joined_hosts import JoinedHosts

PUMP_S = 0.02
LOOK_S = 0.1
LAST_WORDS_S = 0.2  # a dead site's mail may still be on its way
FIRST_CAUSE_S = 1.0  # to hear of a better reason than that a peer is gone
LEAVE_S = 3.0


class SiteLost(FlowError):
    """A site ended without a word, or lost another."""


class LaunchedSites:
    """The sites of a run, as the coordinator sees them."""

    def __init__(
        self, checked: CheckedGraph, layout: SiteLayout, seed: int, hosts: JoinedHosts | None = None
    ) -> None:
        self.checked, self.layout, self.seed, self.hosts = checked, layout, seed, hosts
        self.names = [name for name in layout.kinds if layout.instances_on(name)]
        self._run = os.urandom(16)
        self._processes = SiteProcesses()
        self._threads: dict[str, threading.Thread] = {}
        self._folder = SocketFolder() if self._kind("process") else None
        self._addresses = Addresses(layout, neighbours(checked.graph, layout, self.names))
        self._doors: dict[str, socket.socket] = {}
        allow_files((COORDINATOR, *self._kind("thread")), self._addresses.peers)
        threads: InboxRegistry = {}
        self._boxes = {n: self._box(n, threads) for n in (COORDINATOR, *self._kind("thread"))}
        self._channels = SiteChannels(self._boxes[COORDINATOR], self.dead)
        self.walks: dict[str, SiteScheduler] = {}  # of the sites in this process
        self._down: dict[str, Sender] = {}
        self._closed = False
        self._looked_s = 0.0

    def _kind(self, kind: str) -> list[str]:
        """The sites of a kind on this machine."""
        kinds = self.layout.kinds
        return [n for n in self.names if kinds[n] == kind and not self.layout.host(n)]

    def _box(self, name: str, threads: InboxRegistry) -> SiteConnections:
        addresses = self._addresses
        box = SiteConnections(name, self._run, threads, keys=addresses.keys(name))
        if self._folder is not None and self._meets_processes(name):
            addresses.near[name] = box.listen(self._folder.address(name))
        if self.hosts is not None and addresses.is_far(name):
            bound = box.listen(tcp(self.hosts.machine, "*"))
            addresses.ports[name] = int(bound.rpartition(":")[2])
        return box

    def _meets_processes(self, name: str) -> bool:
        """Whether a process of this machine sends to it; threads among threads need no sockets."""
        return not set(self._kind("process")).isdisjoint(self._addresses.peers[name])

    # starting

    def start(self) -> None:
        """Start all; they are at work when they say so."""
        for name in self._kind("process"):
            self._listen(name)
        if self.hosts is not None:
            self.hosts.listen(self._addresses, self.layout.hosts)
        for name, box in self._boxes.items():
            for peer in self._addresses.peers[name]:
                box.connect(peer, self._address(peer, name))
        channels = self._channels
        self._up = {n: channels.open_receiver(f"{UP}:{n}", n, limits=CONTROL) for n in self.names}
        self._last = {
            n: channels.open_receiver(f"{FAILED}:{n}", n, limits=CONTROL) for n in self.names
        }
        self._down = {n: channels.open_sender(f"{DOWN}:{n}", n, limits=CONTROL) for n in self.names}
        self._start_processes()
        for name in self._kind("thread"):
            self._start_thread(name)

    def _listen(self, name: str) -> None:
        """Decide where a process will be reached; on the network, it is awaited from now on."""
        assert self._folder is not None
        self._addresses.near[name] = self._folder.address(name)
        if self.hosts is not None and self._addresses.is_far(name):
            self._doors[name], self._addresses.ports[name] = listening(self.hosts.machine)

    def _address(self, name: str, by: str) -> str:
        if name in self._boxes and by in self._boxes:
            return self._boxes[name].address
        return self._addresses.of(name, by)

    def _start_thread(self, name: str) -> None:
        work = (self.checked, self.layout, name, SiteChannels(self._boxes[name]), self.seed)
        made = partial(self.walks.__setitem__, name)
        thread = threading.Thread(target=run_site, args=(*work, made), name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def _start_processes(self) -> None:
        told = {
            "run": self._run.hex(),
            "kinds": dict(self.layout.kinds),
            "where": [[node, r, site] for (node, r), site in self.layout.site_of.items()],
            "title": self.checked.graph.name,
            "seed": self.seed,
        }
        here = self._kind("process")
        loads = {n: loads_of(self.checked, self.layout, n) for n in (*here, *self.layout.hosts)}
        if here:
            graph = {"graph": expand(self.checked.graph)}
            doors = [door.fileno() for door in self._doors.values()]
            sites = {name: self._told(name) for name in here}
            self._processes.start({**told, **graph}, sites, loads, doors)
        if self.hosts is not None:
            there = {n: {**self._told(n), "loads": list(loads[n])} for n in self.layout.hosts}
            self.hosts.start(told, there)

    def _told(self, name: str) -> dict[str, Any]:
        """How one process is reached, and reaches others."""
        addresses, door = self._addresses, self._doors.get(name)
        keys = addresses.keys(name)
        return {
            "near": addresses.near.get(name, ""),
            "door": door.fileno() if door else None,
            "peers": {peer: addresses.of(peer, name) for peer in addresses.peers[name]},
            "keys": keys.as_text() if keys else None,
        }

    # talking

    def say(self, *words: Any) -> None:
        """Tell all sites something."""
        for name in self.names:
            self._down[name].send(list(words))
        self._channels.flush()

    def on_out_of_band(self, hear: Callable[[str, str], None]) -> None:
        """Call this with what is told of a site while it is busy."""
        self._channels.on_out_of_band = hear

    def _pump(self) -> None:
        self._channels.poll(PUMP_S)
        if self.hosts is not None:
            self.hosts.pump()

    def heard(self) -> list[tuple[str, list[Any]]]:
        """What sites have said meanwhile; raises what ended one of them."""
        self._pump()
        said = []
        for name, lane in self._up.items():
            while len(lane):
                said.append((name, lane.take()[0]))
        if any(map(len, self._last.values())) or self._finds_one_dead():
            raise self._first_cause()
        return said

    def _finds_one_dead(self) -> bool:
        """Look now and then: asking the system after hundreds of sites takes its time."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return any(map(self.dead, self.names))

    def dead(self, name: str) -> str | None:
        """Why a site is dead, or None."""
        thread = self._threads.get(name)
        if thread is not None:
            return None if thread.is_alive() else "its thread has ended"
        if self.hosts is not None and self.layout.host(name):
            return self.hosts.dead(name)
        return self._processes.why_ended(name)

    def _first_cause(self) -> FlowError:
        """What a node raised comes before a killed process, and that before what either did to others."""
        failures: dict[str, tuple[str, FlowError]] = {}  # by site: what kind, and what
        began = time.monotonic()
        patience_s = FIRST_CAUSE_S
        while time.monotonic() - began < patience_s and "node" not in _kinds(failures):
            self._pump()
            if any(self.dead(name) for name in self.names if name not in failures):
                patience_s = LAST_WORDS_S  # no other site ends another without a word
            for name, lane in self._last.items():
                while len(lane):
                    words = lane.take()[0]
                    failures.setdefault(name, (words[0], _failure(name, words)))
        found = dict(reversed(list(failures.values())))
        dead = {n: why for n in self.names if (why := self.dead(n)) is not None}
        silent = [name for name in dead if name not in failures]
        if "node" not in found and silent:
            return SiteLost(f"site '{silent[0]}' has ended: {dead[silent[0]]}")
        return next(found[kind] for kind in ("node", "site", "lost") if kind in found)

    # ending

    def close(self) -> None:
        """End all, in bounded time."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + LEAVE_S
        for name in self._down:
            if self.dead(name) is None and self._down[name].is_ready():
                self._down[name].send(["leave"])
        self._channels.flush()
        self._processes.end(deadline)
        for thread in self._threads.values():
            thread.join(max(deadline - time.monotonic(), 0.1))
        self._channels.close()
        for door in self._doors.values():
            door.close()
        if self._folder is not None:
            self._folder.close()


def _kinds(failures: Mapping[str, tuple[str, FlowError]]) -> set[str]:
    return {kind for kind, _ in failures.values()}


def _failure(name: str, words: list[Any]) -> FlowError:
    """What a site said when it failed."""
    kind, *told = words
    if kind == "node":
        error = raised_there(name, told)
        assert isinstance(error, NodeError)
        return error
    what, text = told
    lost = SiteLost(f"site '{name}': {what}")
    lost.__cause__ = RemoteTraceback(f"on site '{name}'\n{text}")
    return lost
