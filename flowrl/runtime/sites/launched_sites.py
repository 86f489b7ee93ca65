"""Starts the sites of a run, connects them to the coordinator, watches them, and ends them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from flowrl.channels import InboxRegistry, SiteChannels, SiteConnections
from flowrl.channels.socket_folder import SocketFolder
from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import UsageError
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.network_address import open_listener, tcp_url
from flowrl.machine.resource_limits import raise_open_file_limit
from flowrl.runtime.control.messages import (
    Command,
    ConnectionFailure,
    Failure,
    LeaveRun,
    ReplacePeer,
    Report,
)
from flowrl.runtime.disturbances import Disturbance, SiteSignal
from flowrl.runtime.sites.addresses import Addresses, peers_of_sites
from flowrl.runtime.sites.control_channels import ControlChannels
from flowrl.runtime.sites.graph_transfer import graph_on_this_machine
from flowrl.runtime.sites.remote_hosts import RemoteHosts
from flowrl.runtime.sites.site import SiteScheduler
from flowrl.runtime.sites.site_failures import first_cause, has_node_failure
from flowrl.runtime.sites.site_processes import SiteProcesses, modules_needed
from flowrl.runtime.sites.site_run import run_site

POLL_S = 0.02
CHECK_ALIVE_S = 0.1  # between checks, which take long with hundreds of sites
LAST_MESSAGES_S = 0.2  # in which the last messages of a dead site may arrive
FIRST_CAUSE_S = 1.0  # in which a better reason may arrive than a lost peer
CLOSE_S = 3.0
FILES_OF_SITE = 16  # sockets and wake-up pipes
FILES_OF_PEER = 6  # for each peer in another process
OTHER_FILES = 64  # that nodes and libraries may open

T = TypeVar("T")


class LaunchedSites:
    """The coordinator's handle of all sites, in threads, in processes and on hosts; owned by one thread."""

    def __init__(
        self,
        checked: CheckedGraph,
        layout: SiteLayout,
        seed: int,
        hosts: RemoteHosts | None = None,
        continues: bool = False,
    ) -> None:
        self.checked, self.layout, self.seed, self.hosts = checked, layout, seed, hosts
        self.continues = continues  # whether the run continues from a snapshot
        self.names = list(layout.kinds)
        self.schedulers: dict[str, SiteScheduler] = {}  # of the sites in this process
        self.processes = SiteProcesses()
        self._run = os.urandom(16)
        self._threads: dict[str, threading.Thread] = {}
        self._folder = SocketFolder() if self._local_sites("process") else None
        self._addresses = Addresses(layout, peers_of_sites(checked.graph, layout, self.names))
        self._listeners: dict[str, socket.socket] = {}
        self._allow_open_files()
        inboxes: InboxRegistry = {}
        in_this_process = (COORDINATOR, *self._local_sites("thread"))
        self._connections = {name: self._connect(name, inboxes) for name in in_this_process}
        self._channels = SiteChannels(self._connections[COORDINATOR], self.find_failure)
        self._control = ControlChannels(self._channels)
        self._refusal_lines: list[str] = []  # of the coordinator
        self._refusals_of_failed: list[str] = []
        self._is_closed = False
        self._checked_alive_s = 0.0
        # Sites whose loss is not the end of the run: it is returned by `take_losses`.
        self.replaceable: Collection[str] = ()
        self._lost: dict[str, str] = {}  # and why, until they are started again
        self._lost |= dict.fromkeys(layout.absent, "its host has not joined yet")
        self._never_started = set(layout.absent)
        self._new_losses: list[str] = []
        self._epochs = dict.fromkeys([COORDINATOR, *self.names], 0)

    def _local_sites(self, kind: str) -> list[str]:
        """Return the sites of a kind on this machine."""
        kinds = self.layout.kinds
        return [n for n in self.names if kinds[n] == kind and not self.layout.host(n)]

    def names_in_other_processes(self) -> list[str]:
        """Return the sites that are not threads of this process."""
        in_this_process = self._local_sites("thread")
        return [name for name in self.names if name not in in_this_process]

    def _allow_open_files(self) -> None:
        """Raise the limit of open files, if the sites in this process or in a child process need more."""
        in_this_process = {COORDINATOR, *self._local_sites("thread")}
        needs = {
            name: FILES_OF_SITE + FILES_OF_PEER * len(set(peers) - in_this_process)
            for name, peers in self._addresses.peers.items()
        }
        most = max(sum(needs[name] for name in in_this_process), *needs.values())
        refused = raise_open_file_limit(most + OTHER_FILES)
        if refused is not None:
            raise UsageError(
                f"placement: for its {len(self.names)} sites {refused}; raise that limit (ulimit -Hn), or let more "
                "nodes share a site"
            )

    def _connect(self, name: str, inboxes: InboxRegistry) -> SiteConnections:
        """Make the connections of the coordinator or of a site in a thread. Sites in threads need no sockets."""
        addresses = self._addresses
        connections = SiteConnections(name, self._run, inboxes, keys=addresses.keys(name))
        has_process_peer = not set(self._local_sites("process")).isdisjoint(addresses.peers[name])
        if self._folder is not None and has_process_peer:
            addresses.local[name] = connections.listen(self._folder.address(name))
        if self.hosts is not None and addresses.has_remote_peer(name):
            address = connections.listen(tcp_url(self.hosts.machine, "*"))
            addresses.ports[name] = int(address.rpartition(":")[2])
        return connections

    # starting

    def start(self) -> None:
        """Start all sites. Each reports `SiteReady`."""
        for name in self._local_sites("process"):
            self._choose_address(name)
        if self.hosts is not None:
            self.hosts.listen(self._addresses, self._present(self.layout.hosts))
        for name, connections in self._connections.items():
            for peer in self._addresses.peers[name]:
                if self.is_started(peer):
                    connections.connect(peer, self._address(peer, name))
                else:
                    connections.await_peer(peer)
        for name in self.names:
            self._control.open(name)
        self._start_processes()
        for name in self._local_sites("thread"):
            self._start_thread(name)

    def is_started(self, name: str) -> bool:
        """Return whether a site has ever been started. Any thread may call this."""
        return name not in self._never_started

    def _present(self, sites: Mapping[str, T]) -> dict[str, T]:
        """Return the entries of sites that have been started."""
        return {name: entry for name, entry in sites.items() if self.is_started(name)}

    def _choose_address(self, name: str) -> None:
        """Choose the address of a site in a process. On the network, listen at it from now on."""
        assert self._folder is not None
        self._addresses.local[name] = self._folder.address(name, self._epochs[name])
        if name in self._listeners:
            self._listeners.pop(name).close()
        if self.hosts is not None and self._addresses.has_remote_peer(name):
            listener, port = open_listener(self.hosts.machine)
            self._listeners[name], self._addresses.ports[name] = listener, port

    def _address(self, name: str, peer: str) -> str:
        """Return the address of a site for a peer in this process."""
        if name in self._connections and peer in self._connections:
            return self._connections[name].inproc_address
        return self._addresses.address_for(name, peer)

    def _start_thread(self, name: str) -> None:
        channels = SiteChannels(self._connections[name])
        on_made = partial(self.schedulers.__setitem__, name)
        arguments = (self.checked, self.layout, name, channels, self.seed, on_made, self.continues)
        thread = threading.Thread(target=run_site, args=arguments, name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def _config(self, continues: bool) -> dict[str, Any]:
        """Return what the configurations of all sites have in common."""
        return {
            "run": self._run.hex(),
            "kinds": dict(self.layout.kinds),
            "placed": [[node, r, site] for (node, r), site in self.layout.site_of.items()],
            "state_senders": {to: dict(tree) for to, tree in self.layout.state_senders.items()},
            "seed": self.seed,
            "continues": continues,
        }

    def _start_processes(self) -> None:
        config = self._config(self.continues)
        local, remote = self._local_sites("process"), self._present(self.layout.hosts)
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
        """Return the addresses, keys and GPUs of a site in another process, and the addresses of its peers."""
        addresses, listener = self._addresses, self._listeners.get(name)
        keys, peers = addresses.keys(name), addresses.peers[name]
        present = [peer for peer in peers if self.is_started(peer)]
        return {
            "address": addresses.local.get(name, ""),
            "listener": listener.fileno() if listener else None,
            "peers": {peer: addresses.address_for(peer, name) for peer in present},
            "absent": sorted(self._never_started.intersection(peers)),
            "keys": keys.to_json() if keys else None,
            "epochs": {peer: self._epochs[peer] for peer in (name, *peers)},
            "gpus": list(self.layout.gpus.get(name, ())),
        }

    # starting again

    def take_losses(self) -> list[tuple[str, str]]:
        """Return the replaceable sites that were lost since the last call, each with the reason."""
        losses, self._new_losses = self._new_losses, []
        return [(name, self._lost[name]) for name in losses]

    def lose(self, name: str, why: str) -> None:
        """Take a site for lost. If it still runs, it is killed."""
        self._lost[name] = why
        if self.find_failure(name) is None:
            self.disturb(SiteSignal(name, signal.SIGKILL))

    def epoch(self, name: str) -> int:
        """Return how often a site was started again."""
        return self._epochs[name]

    def start_again(self, name: str) -> list[str] | None:
        """Start a lost site again, and have its peers replace it. Return those that will answer.

        Return None if it belongs on a host, and no host is there for it.
        """
        addresses = self._addresses
        host = self._listen_on_host(name) if self.layout.host(name) else None
        if host == "":
            return None
        del self._lost[name]
        self._never_started.discard(name)
        self._epochs[name] += 1
        epoch = self._epochs[name]
        if host is None:
            self._choose_address(name)
        self._channels.replace_peer(name, addresses.address_for(name, COORDINATOR), epoch)
        config, own = self._config(continues=True), self._site_config(name)
        modules = modules_needed(self.checked, self.layout, name)
        if host is None:
            fds = [listener.fileno() for site, listener in self._listeners.items() if site == name]
            whole = {**config, **graph_on_this_machine(self.checked)}
            self.processes.start(whole, {name: own}, {name: modules}, fds)
        else:
            assert self.hosts is not None
            self.hosts.start_again(name, config, {**own, "imports": list(modules)})
        present = [p for p in addresses.peers[name] if p != COORDINATOR and p not in self._lost]
        for peer in present:
            self.send_to(peer, ReplacePeer(name, addresses.address_for(name, peer), epoch))
        return present

    def _listen_on_host(self, name: str) -> str:
        """Find a host for a lost site, which listens for it from now on; empty if there is none.

        No peer is on it: sites on one host reach each other without keys, and have none. If the run can do without the
        site, no other replica is on it either.
        """
        assert self.hosts is not None
        avoided = {
            *self._addresses.peers[name],
            *self.layout.later.get(name, ()),
        } - self._lost.keys()
        avoided_hosts = {self.layout.host(other) for other in avoided} - {""}
        # Only on its own host are the resources that it needs known to be free.
        own_host = self.layout.host(name)
        place = own_host if name in self.layout.needs else self.layout.places[name]
        host = self.hosts.listen_again(name, place, self._addresses, avoided_hosts)
        if host:
            self.layout = replace(self.layout, hosts={**self.layout.hosts, name: host})
            self._addresses.layout = self.layout
        return host

    # messages

    def send(self, command: Command) -> None:
        """Send a command to all sites that are not lost."""
        self._control.send(command, (name for name in self.names if name not in self._lost))

    def send_to(self, site: str, command: Command) -> None:
        """Send a command to one site, if it is not lost."""
        if site not in self._lost:
            self._control.send(command, [site])

    def send_when_ready(self, site: str, command: Command) -> None:
        """Send a large command to one site when there is room for it; raise the first cause if a site fails."""
        while site not in self._lost and not self._control.can_send(site):
            self._poll()
            if self._has_failures():
                self._handle_failures()
        self.send_to(site, command)

    def refusal_lines(self) -> list[str]:
        """Return what the coordinator and the sites that have failed have refused."""
        if not self._is_closed:
            self._refusal_lines = self._channels.connections.refusal_lines()
        return [*self._refusal_lines, *self._refusals_of_failed]

    def on_out_of_band(self, callback: Callable[[str, str], None]) -> None:
        """Have `callback` called with the texts that beacons send while their sites are busy."""
        self._channels.on_out_of_band = callback

    def receive(self) -> list[tuple[str, Report]]:
        """Return the sites' reports after a short wait, or raise the first cause if a site has failed.

        If only replaceable sites were lost, `take_losses` returns them.
        """
        self._poll()
        if self._has_failures():
            self._handle_failures()
        return list(self._control.take_reports())

    def _poll(self) -> None:
        self._channels.poll(POLL_S)
        if self.hosts is not None:
            self.hosts.pump()

    def disturb(self, disturbance: Disturbance) -> None:
        """Do something to a site in another process, or to a host. It may have ended already."""
        if self.hosts is not None:
            self.hosts.disturb(disturbance)
        if isinstance(disturbance, SiteSignal):
            self.processes.signal(disturbance)

    # failures

    def _has_failures(self) -> bool:
        return self._control.has_failures or self._some_site_is_dead()

    def _some_site_is_dead(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._checked_alive_s < CHECK_ALIVE_S:
            return False
        self._checked_alive_s = now_s
        return any(self.find_failure(name) for name in self.names if name not in self._lost)

    def find_failure(self, name: str) -> str | None:
        """Return why a site is dead, or None."""
        thread = self._threads.get(name)
        if thread is not None:
            return None if thread.is_alive() else "its thread has ended"
        if self.hosts is not None and self.layout.host(name):
            return self.hosts.find_failure(name)
        return self.processes.find_failure(name)

    def _handle_failures(self) -> None:
        """Raise the first cause of failures, unless the sites that have failed can all be replaced."""
        failures = self._receive_failures()
        self._refusals_of_failed += [line for f in failures.values() for line in f.refusals]
        watched = [name for name in self.names if name not in self._lost]
        dead = {n: why for n in watched if (why := self.find_failure(n)) is not None}
        broken = {n: f.text for n, f in failures.items() if isinstance(f, ConnectionFailure)}
        if len(broken) < len(failures) or not {*failures, *dead} <= {*self.replaceable}:
            raise first_cause(failures, dead)
        for name, why in (broken | dead).items():
            self.lose(name, why)
            self._new_losses.append(name)

    def _receive_failures(self) -> dict[str, Failure]:
        """Return the failures of sites. Those that may be the cause of others are waited for."""
        failures: dict[str, Failure] = {}
        began = time.monotonic()
        wait_s = FIRST_CAUSE_S
        while time.monotonic() - began < wait_s and not has_node_failure(failures):
            self._poll()
            watched = [name for name in self.names if name not in {*failures, *self._lost}]
            if any(self.find_failure(name) for name in watched):
                wait_s = LAST_MESSAGES_S  # other sites fail later because of it
            for name, failure in self._control.take_failures():
                failures.setdefault(name, failure)
        return failures

    # the end

    def close(self) -> None:
        """End all sites, in bounded time. Their sockets are removed also if a person does not wait for that."""
        if self._is_closed:
            return
        self.refusal_lines()  # for the summary, which is made after this
        self._is_closed = True
        try:
            self._end_sites()
        finally:
            if self._folder is not None:
                self._folder.close()

    def _end_sites(self) -> None:
        deadline = time.monotonic() + CLOSE_S
        reachable = [n for n in self.names if n not in self._lost and self._control.can_send(n)]
        alive = [name for name in reachable if self.find_failure(name) is None]
        self._control.send(LeaveRun(), alive)
        self.processes.end(deadline)
        for thread in self._threads.values():
            thread.join(max(deadline - time.monotonic(), 0.1))
        self._channels.close()
        for listener in self._listeners.values():
            listener.close()
