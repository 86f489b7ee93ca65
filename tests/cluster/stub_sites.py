"""Hosts and sites without nodes, all in one process, that speak with a run as real ones do.

`StubHosts` is a launcher: `launch: {type: tests.cluster.stub_sites:StubHosts, hosts: 1000}`. Each host joins over a
connection of its own and listens for its sites. A site completes a round in `round_s`, as far as its lease allows,
without waiting for tokens, which nobody sends. It counts an env step in each round, or a train iteration and a metric,
and reports and ends like a real site.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from flowrl.channels import SiteChannels, SiteConnections
from flowrl.channels.keys import Keys
from flowrl.channels.tcp import TcpTransport
from flowrl.channels.transport import SiteSettings
from flowrl.channels.zmq_sockets import Socket, ZmqSockets
from flowrl.cluster.compatibility import machine_facts
from flowrl.cluster.join_file import JoinInfo, read_join_file
from flowrl.cluster.launcher import HostOrder, Launcher, LaunchStatus
from flowrl.cluster.messages import (
    PROTOCOL,
    Heartbeat,
    HostLeft,
    Join,
    ListenFor,
    RunEnded,
    RunMessage,
    SitePorts,
    StartSites,
)
from flowrl.core.config import param
from flowrl.core.records import MetricsRecord
from flowrl.core.state import Count, State
from flowrl.graph.site_layout import COORDINATOR
from flowrl.machine.network_address import open_listener, tcp_url
from flowrl.machine.resource_limits import raise_open_file_limit
from flowrl.machine.resources import NO_RESOURCES
from flowrl.runtime.control.messages import (
    PositionedCount,
    PositionedRecord,
    RoundsHeld,
    SiteAtCut,
    SiteClosed,
    SiteProgress,
    SiteReady,
    SiteResults,
)
from flowrl.runtime.control.site_control import CoordinatorMessages, SiteReporter, report_period_s
from flowrl.runtime.interruptions import SiteStopped
from flowrl.runtime.records import RecordSource
from flowrl.runtime.status import Activity, EdgeEndStats, NodeStats, SiteStatus
from tests.cluster.many_hosts import BEAT_S, StubHost

Context = zmq.Context[zmq.Socket[bytes]]

LOOPBACK = "127.0.0.1"
LEARNER = "learner"
FILES_OF_HOST = 30  # the sockets of a host and a site, and their wake-up pipes
POLL_MS = 10
IDLE_S = 0.005  # between two looks at all sites, as if messages took so long


class StubHosts(Launcher):
    """Starts one process with so many hosts."""

    class Config(Launcher.Config):
        hosts: int = param(2, "how many hosts", ge=1)
        round_s: float = param(0.05, "in which a site completes a round", ge=0)

    _process: subprocess.Popen[bytes] | None = None

    @property
    def host_count(self) -> int:
        return int(self.config.hosts)

    def machine_of_run(self) -> str:
        return LOOPBACK

    def start(self, order: HostOrder) -> None:
        numbers = (str(self.config.hosts), str(self.config.round_s))
        words = [sys.executable, "-m", "tests.cluster.stub_sites", str(order.join_file), *numbers]
        with (order.folder / "stubs.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def watch(self) -> LaunchStatus:
        assert self._process is not None
        if self._process.poll() is None:
            return LaunchStatus()
        return LaunchStatus(failure=f"the stubs have ended with status {self._process.returncode}")

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class SiteHost(StubHost):
    """A host with stub sites."""

    def __init__(self, context: Context, info: JoinInfo, round_s: float) -> None:
        assert info.keys is not None
        super().__init__(context, info.keys, info.address)
        self._context, self._round_s = context, round_s
        self._listeners: dict[str, socket.socket] = {}
        self.sites: list[StubSite] = []
        self.has_left = False
        facts = machine_facts()
        self.send(
            Join(PROTOCOL, "stub-*", (), LOOPBACK, info.address, NO_RESOURCES, "", facts, "", -1)
        )

    def receive(self) -> list[StubSite]:
        """Do what the run requests, and return the sites that were started."""
        before = len(self.sites)
        while not self.has_left and self.socket.poll(0):
            self._handle(self.session.read(self.socket.recv()))
        return self.sites[before:]

    def _handle(self, request: RunMessage) -> None:
        if isinstance(request, ListenFor):
            made = {site: open_listener(LOOPBACK) for site in request.sites}
            self._listeners = {site: listener for site, (listener, _) in made.items()}
            self.send(SitePorts({site: port for site, (_, port) in made.items()}))
        elif isinstance(request, StartSites):
            for name, own in request.sites.items():
                self.sites.append(
                    StubSite(
                        self._context,
                        name,
                        request.config,
                        own,
                        self._listeners[name],
                        self._round_s,
                    )
                )
        elif isinstance(request, RunEnded):
            self.send(HostLeft("it has left"))
            self.has_left = True


class UnguardedSockets(ZmqSockets):
    """The sockets of one stub, in a context of all stubs. Thousands of guards would be as many threads."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context.term()
        self._context = context

    def listen(
        self,
        kind: int,
        address: str,
        *,
        keys: Keys | None = None,
        listening_fd: int | None = None,
        maxmsgsize: int = -1,
        **unused: Any,
    ) -> tuple[Socket, str]:
        assert keys is not None
        assert listening_fd is not None
        socket = self._context.socket(kind)
        self.listening.append(socket)
        socket.linger, socket.maxmsgsize, socket.use_fd = 0, maxmsgsize, listening_fd
        socket.curve_server, socket.curve_secretkey = True, keys.secret
        socket.bind(address)
        return socket, address

    def close(self, linger_ms: int = 0) -> None:
        for listening in self.listening:
            listening.close(linger_ms)


class UnguardedTcp(TcpTransport):
    """The connection of a stub to its run, which is the only one that knows its address."""

    def __init__(self, settings: SiteSettings, sockets: UnguardedSockets) -> None:
        super().__init__(settings)
        self._sockets.close()
        self._sockets = sockets

    def _authenticate(self, sender: str, header: zmq.Frame) -> None:
        return


class StubConnections(SiteConnections):
    """The connections of a stub."""

    def __init__(self, site: str, run: bytes, keys: Keys, context: Context) -> None:
        super().__init__(site, run, keys=keys)
        self.sockets = UnguardedSockets(context)
        self._transports["tcp"] = UnguardedTcp(self._settings, self.sockets)


class StubSite:
    """A site that does all but fire: `step` is called again and again."""

    def __init__(
        self,
        context: Context,
        name: str,
        config: Mapping[str, Any],
        own: Mapping[str, Any],
        listener: socket.socket,
        round_s: float,
    ) -> None:
        keys = Keys.from_json(own["keys"])
        connections = StubConnections(name, bytes.fromhex(config["run"]), keys, context)
        connections.listen(tcp_url(LOOPBACK, listener.getsockname()[1]), listener.detach())
        connections.connect(COORDINATOR, own["peers"][COORDINATOR])
        [self.readable] = connections.sockets.listening
        # A relay has no instance, and passes nothing on.
        instances = [(node, replica) for node, replica, site in config["placed"] if site == name]
        self._node, self._replica = instances[0] if instances else ("", 0)
        self._name, self._round_s = name, round_s
        self._channels = SiteChannels(connections)
        sites = len(config["kinds"])
        self._reporter = SiteReporter(self._channels, name, sites)
        self._period_s = report_period_s(sites)
        self._messages = CoordinatorMessages(self._channels, name)
        self._messages.on_hold = lambda: self._reporter.answer(RoundsHeld(self._rounds + 1))
        self._rounds, self._reported_rounds = 0, -1
        self._reported_s = self._next_s = time.monotonic()
        self._counts: list[PositionedCount] = []
        self._records: list[PositionedRecord] = []
        self._is_at_cut = self._has_results = False
        self.due_s = 0.0  # when it has something to do, if no command comes before
        self._reporter.send(SiteReady(0))

    def step(self, now_s: float) -> None:
        """Receive commands, and do what is due."""
        try:
            self._channels.drain()
            if not self._is_at_cut:
                self._go_on(now_s)
            elif self._messages.results_requested and not self._has_results:
                self._has_results = True
                self._reporter.send(SiteResults(self._states(), (), 0, (), ()))
                self._reporter.send(SiteClosed(()))
            self._channels.flush()
        except SiteStopped:
            self.due_s = inf

    def close(self) -> None:
        self._channels.close(drop=True)

    def _go_on(self, now_s: float) -> None:
        """Complete the rounds that should be completed by now, and report if a real site would."""
        messages, cut = self._messages, self._messages.cut
        end = messages.granted_rounds if cut is None else min(messages.granted_rounds, cut[0] + 1)
        while self._rounds < end and not messages.is_held and self._next_s <= now_s:
            self._next_s += self._round_s
            self._complete_round()
        waits = self._rounds >= end or messages.is_held
        if waits:
            self._next_s = max(self._next_s, now_s + self._round_s)
        is_new = self._rounds != self._reported_rounds
        if is_new and (waits or now_s - self._reported_s > self._period_s):
            self._report(now_s)
        if cut is not None and self._rounds > cut[0]:
            self._reporter.send(SiteAtCut())
            self._is_at_cut, self.due_s = True, inf
            return
        end_s = self._next_s + (end - self._rounds - 1) * self._round_s
        self.due_s = inf if waits else min(self._reported_s + self._period_s, end_s)

    def _complete_round(self) -> None:
        rounds, is_learner = self._rounds, self._node == LEARNER
        self._rounds += 1
        if not self._node:
            return
        position = (rounds, int(is_learner), self._replica, rounds)
        count = Count(train_iters=1) if is_learner else Count(env_steps=1)
        self._counts.append(PositionedCount(position, count))
        if is_learner:
            source = RecordSource(LEARNER, LEARNER, rounds, Count(train_iters=rounds + 1))
            self._records.append(PositionedRecord(position, source, MetricsRecord({"loss": 0.5})))

    def _report(self, now_s: float) -> None:
        counts, self._counts = self._counts, []
        records, self._records = self._records, []
        self._reporter.send(
            SiteProgress(self._rounds, tuple(counts), tuple(records), self._status())
        )
        self._reported_rounds, self._reported_s = self._rounds, now_s

    def _status(self) -> SiteStatus:
        """What a site with one instance and two edges reports of itself, or a relay."""
        activity = Activity("idle", 0.01)
        if not self._node:
            return SiteStatus(self._name, activity, self._rounds, kind="process")
        instance = f"{self._node}#{self._replica}"
        ends = ("collector.data -> learner.data", "learner.weights -> collector.weights")
        waiting_s, blocked_s = {ends[1]: 0.25}, {ends[0]: 0.25}
        stats = NodeStats(
            instance, self._name, self._rounds, 0.5, waiting_s, blocked_s, self._rounds
        )
        edges = tuple(EdgeEndStats(e, self._rounds, None, 64 << 10, None, 1, 2) for e in ends)
        activity = Activity("firing", 0.01, instance)
        return SiteStatus(self._name, activity, self._rounds, 0.0, (stats,), edges, "process")

    def _states(self) -> dict[str, State]:
        is_learner = self._node == LEARNER
        return {f"{LEARNER}.weights": State({"w": np.zeros(1)})} if is_learner else {}


class Heartbeats:
    """The signs of life of all hosts, also while one of them makes its sites."""

    def __init__(self, hosts: list[SiteHost]) -> None:
        self._hosts, self._sent_s = hosts, time.monotonic()

    def send_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s - self._sent_s >= BEAT_S:
            self._sent_s = now_s
            for host in self._hosts:
                host.send(Heartbeat())


def main(join_file: str, count: str, round_s: str) -> None:
    """Be so many hosts until the run has ended."""
    info = read_join_file(Path(join_file))
    assert info is not None
    context: Context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, FILES_OF_HOST * int(count) + 100)
    raise_open_file_limit(100 + int(count) * FILES_OF_HOST)
    hosts = [SiteHost(context, info, float(round_s)) for _ in range(int(count))]
    poller = zmq.Poller()
    for host in hosts:
        poller.register(host.socket, zmq.POLLIN)
    heartbeats = Heartbeats(hosts)
    while not all(host.has_left for host in hosts):
        ready, now_s = dict(poller.poll(POLL_MS)), time.monotonic()
        for host in hosts:
            if host.socket in ready:
                for site in host.receive():
                    poller.register(site.readable, zmq.POLLIN)
            for site in host.sites:
                if now_s >= site.due_s or site.readable in ready:
                    site.step(now_s)
            heartbeats.send_if_due()
        time.sleep(IDLE_S)
    for host in hosts:
        for site in host.sites:
            site.close()
        host.close()
    context.term()


if __name__ == "__main__":
    main(*sys.argv[1:])
