"""A host: a machine that waits for a run, and serves it until it is over."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from flowrl.channels.errors import RefusedMessage
from flowrl.cluster.compatibility import machine_facts
from flowrl.cluster.control import (
    BEAT_S,
    LEAVE_S,
    PROTOCOL,
    SESSION_BYTES,
    ControlConnection,
    prepare,
)
from flowrl.cluster.control_socket import address_with_key, key_of
from flowrl.cluster.hosted_sites import HostedSites
from flowrl.core.errors import FlowError, UsageError
from flowrl.graph.placement import HostOffer
from flowrl.machine.network_address import (
    Address,
    is_connectable,
    local_address_towards,
    resolve_machine,
)

LOOK_S = 0.2
SAID_BYTES = 1 << 20  # of what sites print, that is passed on in a second
LINE_BYTES = 16 << 10  # that are passed on even if they are no line
AGAIN_S = 0.5  # before the next run is looked for
HUNG_UP = (
    3  # times in the midst of a handshake: once may be a run that just ends, this is another key
)
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | REFUSED
)


class RunLost(FlowError):
    """The run did not come, did not want this host, or is gone."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """How a machine is offered."""

    join: str
    offer: HostOffer
    key: Path | None = None
    address: str | None = None  # that others reach it under
    within_s: float | None = 600.0  # for a run to come
    stay: bool = False  # for the next run


def tell_here(text: str) -> None:
    """A line on the host's own terminal."""
    print(text, file=sys.stderr, flush=True)


def wait_and_serve(waiting: Waiting, tell: Callable[[str], None] = tell_here) -> None:
    """Serve one run, or one after the other; RunLost where that did not end well."""
    there = address_with_key(waiting.join, waiting.key, "--join")
    tell(f"host '{waiting.offer.name}': waiting for a run at {there}")
    while True:
        visit = Visit(waiting, there, tell)
        try:
            visit.serve()
        except RunLost as error:
            if not waiting.stay:
                raise
            tell(f"flowrl: {error}")
        finally:
            visit.close()
        if not waiting.stay:
            return
        time.sleep(AGAIN_S)


class Visit:
    """One run, from its first word to its last; owned by one thread."""

    def __init__(self, waiting: Waiting, there: Address, tell: Callable[[str], None]) -> None:
        self._waiting, self._there, self._tell = waiting, there, tell
        self._machine = _machine(waiting, there)
        keys = key_of(waiting.key)
        self._line = ControlConnection(os.urandom(SESSION_BYTES))
        self._run = ""  # the graph's name, once this host is welcome
        self._over: str | None = None
        self._beat_s = self._second = 0.0
        self._passed_on = 0  # bytes in this second
        self._hung_up = 0
        self._unsaid = ""  # the beginning of a line
        self._hosted: HostedSites | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        prepare(self._socket, there)
        if keys is not None:
            self._socket.curve_serverkey = self._socket.curve_publickey = keys.public
            self._socket.curve_secretkey = keys.secret
        self._monitor = self._socket.get_monitor_socket(WATCHED)
        self._poller = zmq.Poller()
        for socket in (self._socket, self._monitor):
            self._poller.register(socket, zmq.POLLIN)
        self._socket.connect(str(there))

    # a run

    def serve(self) -> None:
        """Until the run is over."""
        within_s = None if self._waiting.stay else self._waiting.within_s
        deadline = None if within_s is None else time.monotonic() + within_s
        while self._over is None:
            self._look()
            if not self._run and deadline is not None and time.monotonic() > deadline:
                raise RunLost(f"{self._there}: no run was there within {within_s:g} s")
        self._tell(f"the run {self._run} is over: {self._over}")

    def _look(self) -> None:
        """Whatever has happened meanwhile."""
        self._poller.poll(int(LOOK_S * 1000))
        while self._monitor.poll(0):
            self._event(parse_monitor_message(self._monitor.recv_multipart())["event"])
        self._hear()
        if self._run:
            self._report()

    def _event(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED and not self._run:
            self._line = ControlConnection(os.urandom(SESSION_BYTES))
            self._say("join", PROTOCOL, self._about())
        elif event == zmq.EVENT_DISCONNECTED and self._run:
            raise RunLost(f"the run {self._run} is gone: the connection to {self._there} broke off")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._hung_up += 1
        if event & REFUSED or self._hung_up >= HUNG_UP:
            what = "whoever listens there has another key, or none"
            if self._waiting.key is None:
                what = "whoever listens there asks for a key; give it with --key FILE"
            raise RunLost(f"{self._there}: {what}")

    def _about(self) -> dict[str, Any]:
        offer = self._waiting.offer
        return {
            "name": offer.name,
            "labels": list(offer.labels),
            "address": self._machine,
            "joined": str(self._there),
            **machine_facts(),
        }

    def _say(self, word: str, *values: Any) -> None:
        self._socket.send(self._line.pack(word, *values), zmq.NOBLOCK)

    # what it is told

    def _hear(self) -> None:
        while self._over is None:
            try:
                word, values = self._line.read(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except RefusedMessage as error:
                self._tell(f"refused: a message from {self._there}: {error.reason}")
                continue
            self._told(word, values)

    def _told(self, word: str, values: list[Any]) -> None:
        if word == "welcome":
            [self._run] = values
            self._tell(f"joined the run {self._run}")
        elif word == "refused":
            raise RunLost(f"the run at {self._there} refuses this host: {values[0]}")
        elif word == "over":
            [self._over] = values
        elif self._run and word != "beat":
            self._work(word, values)

    def _work(self, word: str, values: list[Any]) -> None:
        """What concerns this run's sites; what cannot be done ends the run, and is told there."""
        hosted = self._hosted = self._hosted or self._new_hosted()
        try:
            if word == "listen":
                self._say("listening", hosted.listen(*values))
            elif word == "file":
                hosted.file(*values)
            elif word == "start":
                hosted.start(*values)
                self._tell(f"at work: {', '.join(values[1])}")
        except (FlowError, OSError, LookupError, TypeError, AttributeError) as error:
            self._say("failed", f"'{word}' could not be done: {type(error).__name__}: {error}")
            raise RunLost(f"'{word}' could not be done: {error}") from error

    def _new_hosted(self) -> HostedSites:
        hosted = HostedSites(self._machine)
        self._poller.register(hosted.printing, zmq.POLLIN)
        return hosted

    # what it tells

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._beat_s >= BEAT_S:
            self._beat_s = now
            self._say("beat")
        if self._hosted is not None:
            for site, why in self._hosted.ended():
                self._pass_on(all_of_it=True)
                self._say("ended", site, why)
            self._pass_on()

    def _pass_on(self, all_of_it: bool = False) -> None:
        """The lines that sites have printed; more than so much in a second stays on this terminal."""
        assert self._hosted is not None
        self._unsaid += self._hosted.printed()
        end = len(self._unsaid)
        if not all_of_it and end < LINE_BYTES:
            end = self._unsaid.rfind("\n") + 1
        text, self._unsaid = self._unsaid[:end], self._unsaid[end:]
        if not text:
            return
        sys.stderr.write(text)
        sys.stderr.flush()
        if time.monotonic() - self._second >= 1.0:
            self._second, self._passed_on = time.monotonic(), 0
        before = self._passed_on
        self._passed_on += len(text)
        if self._passed_on <= SAID_BYTES:
            self._say("said", text)
        elif before <= SAID_BYTES:
            self._say("said", "(more was printed in this second; it is on the host's own terminal)")

    def close(self, why: str = "it has left") -> None:
        """End the run's sites, say so, and go."""
        if self._hosted is not None:
            self._hosted.close(
                0.0 if self._over is None else LEAVE_S
            )  # nobody else tells the sites
        if self._run:
            self._say("left", why)
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close(1000)
        self._context.term()


def _machine(waiting: Waiting, there: Address) -> str:
    """Under which address others reach this machine."""
    if waiting.address is None:
        return local_address_towards(there)
    machine = resolve_machine(waiting.address, f"--address {waiting.address}")
    if not is_connectable(machine):
        raise UsageError(f"--address {waiting.address}: others cannot connect to this address")
    return machine
