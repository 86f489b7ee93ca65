"""Starting sites, talking with them, and ending them, whatever state they are in."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from flowrl.channels import InboxRegistry, Sender, SiteChannels, SiteConnections
from flowrl.channels.socket_folder import SocketFolder
from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import FlowError, NodeError, UsageError
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.network_address import open_listener, tcp_url
from flowrl.machine.open_files import raise_open_file_limit
from flowrl.runtime.control.messages import DOWN, FAILED, UP, RemoteTraceback, raised_there
from flowrl.runtime.control.orders import CONTROL
from flowrl.runtime.processes.addresses import Addresses, neighbours
from flowrl.runtime.processes.graph_transfer import graph_on_this_machine
from flowrl.runtime.processes.site_processes import SiteProcesses, modules_needed
from flowrl.runtime.site import SiteScheduler, run_site

PUMP_S = 0.02
LOOK_S = 0.1
LAST_WORDS_S = 0.2  # a dead site's mail may still be on its way
FIRST_CAUSE_S = 1.0  # to hear of a better reason than that a peer is gone
LEAVE_S = 3.0
FILES_OF_SITE = 16  # sockets, and what wakes those that wait for them
FILES_OF_PEER = 6  # for each peer in another process
OTHER_FILES = 64  # that nodes and libraries may open


class SiteLost(FlowError):
    """A site ended without a word, or lost another."""


class RemoteHosts(Protocol):
    """The other machines of a run, on which some of its sites are started."""

    @property
    def machine(self) -> str:
        """The address at which sites of this machine listen for sites of the hosts."""

    def listen(self, addresses: Addresses, hosts: Mapping[str, str]) -> None:
        """Have each host listen for its sites (by site: the host), and add their addresses."""

    def start(self, config: Mapping[str, Any], sites: Mapping[str, Any]) -> None:
        """Have each host start its sites, see `child_site`."""

    def pump(self) -> None:
        """Receive what hosts have sent, without waiting."""

    def why_dead(self, site: str) -> str | None:
        """Why a site is dead, or None."""


class LaunchedSites:
    """The sites of a run, as the coordinator sees them."""

    def __init__(
        self, checked: CheckedGraph, layout: SiteLayout, seed: int, hosts: RemoteHosts | None = None
    ) -> None:
        self.checked, self.layout, self.seed, self.hosts = checked, layout, seed, hosts
        self.names = [name for name in layout.kinds if layout.instances_on(name)]
        self._run = os.urandom(16)
        self.processes = SiteProcesses()
        self._threads: dict[str, threading.Thread] = {}
        self._folder = SocketFolder() if self._kind("process") else None
        self._addresses = Addresses(layout, neighbours(checked.graph, layout, self.names))
        self._listeners: dict[str, socket.socket] = {}
        self._allow_open_files()
        threads: InboxRegistry = {}
        self._boxes = {n: self._box(n, threads) for n in (COORDINATOR, *self._kind("thread"))}
        self._channels = SiteChannels(self._boxes[COORDINATOR], self.why_dead)
        self.walks: dict[str, SiteScheduler] = {}  # of the sites in this process
        self._down: dict[str, Sender] = {}
        self._closed = False
        self._looked_s = 0.0

    def _allow_open_files(self) -> None:
        """Raise the limit of open files if the sites of this process, or of one that it starts, need more."""
        here = {COORDINATOR, *self._kind("thread")}
        needs = {
            name: FILES_OF_SITE + FILES_OF_PEER * len(set(peers) - here)
            for name, peers in self._addresses.peers.items()
        }
        most = max(sum(needs[name] for name in here), *needs.values())
        refused = raise_open_file_limit(most + OTHER_FILES)
        if refused is not None:
            raise UsageError(
                f"placement: for its {len(self.names)} sites {refused}; raise that limit (ulimit -Hn), or let more "
                "nodes share a site"
            )

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
            bound = box.listen(tcp_url(self.hosts.machine, "*"))
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
            self._listeners[name], self._addresses.ports[name] = open_listener(self.hosts.machine)

    def _address(self, name: str, by: str) -> str:
        if name in self._boxes and by in self._boxes:
            return self._boxes[name].inproc_address
        return self._addresses.of(name, by)

    def _start_thread(self, name: str) -> None:
        work = (self.checked, self.layout, name, SiteChannels(self._boxes[name]), self.seed)
        made = partial(self.walks.__setitem__, name)
        thread = threading.Thread(target=run_site, args=(*work, made), name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def _start_processes(self) -> None:
        config = {
            "run": self._run.hex(),
            "kinds": dict(self.layout.kinds),
            "placed": [[node, r, site] for (node, r), site in self.layout.site_of.items()],
            "seed": self.seed,
        }
        local, remote = self._kind("process"), self.layout.hosts
        modules = {n: modules_needed(self.checked, self.layout, n) for n in (*local, *remote)}
        if local:
            graph = graph_on_this_machine(self.checked)
            sites = {name: self._site_config(name) for name in local}
            fds = [listener.fileno() for listener in self._listeners.values()]
            self.processes.start({**config, **graph}, sites, modules, fds)
        if self.hosts is not None:
            sites = {n: {**self._site_config(n), "imports": list(modules[n])} for n in remote}
            self.hosts.start(config, sites)

    def _site_config(self, name: str) -> dict[str, Any]:
        """How a site in another process is reached, and how it reaches its peers."""
        addresses, listener = self._addresses, self._listeners.get(name)
        keys = addresses.keys(name)
        return {
            "address": addresses.near.get(name, ""),
            "listener": listener.fileno() if listener else None,
            "peers": {peer: addresses.of(peer, name) for peer in addresses.peers[name]},
            "keys": keys.to_json() if keys else None,
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
        return any(map(self.why_dead, self.names))

    def why_dead(self, name: str) -> str | None:
        """Why a site is dead, or None."""
        thread = self._threads.get(name)
        if thread is not None:
            return None if thread.is_alive() else "its thread has ended"
        if self.hosts is not None and self.layout.host(name):
            return self.hosts.why_dead(name)
        return self.processes.why_ended(name)

    def _first_cause(self) -> FlowError:
        """What a node raised comes before a killed process, and that before what either did to others."""
        failures: dict[str, tuple[str, FlowError]] = {}  # by site: what kind, and what
        began = time.monotonic()
        patience_s = FIRST_CAUSE_S
        while time.monotonic() - began < patience_s and "node" not in _kinds(failures):
            self._pump()
            if any(self.why_dead(name) for name in self.names if name not in failures):
                patience_s = LAST_WORDS_S  # no other site ends another without a word
            for name, lane in self._last.items():
                while len(lane):
                    words = lane.take()[0]
                    failures.setdefault(name, (words[0], _failure(name, words)))
        found = dict(reversed(list(failures.values())))
        dead = {n: why for n in self.names if (why := self.why_dead(n)) is not None}
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
            if self.why_dead(name) is None and self._down[name].is_ready():
                self._down[name].send(["leave"])
        self._channels.flush()
        self.processes.end(deadline)
        for thread in self._threads.values():
            thread.join(max(deadline - time.monotonic(), 0.1))
        self._channels.close()
        for listener in self._listeners.values():
            listener.close()
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
