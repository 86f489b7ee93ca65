"""The hosts that have joined a run: their messages and heartbeats, and which of them are lost.

Only control messages go this way. Tokens go from site to site.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from flowrl.channels.errors import RefusedMessage
from flowrl.cluster.control_socket import ControlSocket
from flowrl.cluster.host_admission import NAME_TAKEN, HostAdmission
from flowrl.cluster.joined_host import JoinedHost
from flowrl.cluster.messages import (
    CLOSE_S,
    HEARTBEAT_S,
    SILENCE_S,
    Heartbeat,
    HostDropped,
    JoinRefused,
    RunEnded,
    RunMessage,
    SiteOutput,
    Welcome,
)
from flowrl.graph.host_offers import HostOffer

LEAVE_TIMEOUT_S = CLOSE_S + 2.0  # within which hosts report that they have ended their sites
POLL_S = 0.2
LINGER_MS = 200


class JoinedHosts:
    """The run's end of the control connections to its hosts; owned by the coordinator's thread."""

    def __init__(
        self,
        control: ControlSocket,
        admission: HostAdmission,
        title: str,
        show: Callable[[str], None] = lambda text: None,
        log_folder: Path | None = None,
        on_heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """`title` is the name of the graph; `show` shows a line to the user.

        What sites print goes into a file for each host in the folder of logs. `on_heartbeat` is called about once a
        second, while messages are handled.
        """
        self._control, self._admission, self._title = control, admission, title
        self._show, self._log_folder, self._on_heartbeat = show, log_folder, on_heartbeat
        self._joined: dict[bytes, JoinedHost] = {}  # by connection
        self._heartbeat_s = 0.0

    def all(self) -> list[JoinedHost]:
        """All hosts that have joined, also those that are lost. Any thread may call this."""
        return list(self._joined.values())

    def present(self) -> list[JoinedHost]:
        """The hosts that have joined and are not lost."""
        return [host for host in self.all() if not host.why_lost]

    def offers(self) -> list[HostOffer]:
        return [host.offer for host in self.present()]

    def refusals(self) -> list[str]:
        """A line for each reason for which messages and hosts were refused."""
        return self._control.refused.lines(f"at {self._control.address}")

    def send(self, host: JoinedHost, message: RunMessage) -> None:
        if not self._control.send(host.connection, host.session.pack(message)):
            host.why_lost = host.why_lost or "its connection is closed"

    def pump_until(self, is_done: Callable[[], bool], within_s: float) -> bool:
        """Handle messages until this is so, or for so long; return whether it is so."""
        deadline = time.monotonic() + within_s
        while not (done := is_done()) and time.monotonic() <= deadline:
            self.pump(POLL_S)
        return done

    def pump(self, timeout_s: float = 0.0) -> None:
        """Handle the messages that have arrived, exchange heartbeats, and notice hosts that are silent."""
        for connection, data in self._control.receive(timeout_s):
            host = self._joined.get(connection)
            try:
                if host is None:
                    self._handle_join(JoinedHost(connection, data))
                elif host.why_lost:
                    self._drop(host)
                else:
                    self._handle_report(host, data)
            except RefusedMessage as error:
                sender = f"host '{host.name}'" if host else "a connection that has not joined"
                self._control.refused.add(f"{error.reason}, from {sender}")
        now = time.monotonic()
        if now - self._heartbeat_s >= HEARTBEAT_S:
            self._heartbeat_s = now
            for host in self.present():
                self.send(host, Heartbeat())
            self._on_heartbeat()
        for host in self.present():
            if now - host.heard_s > SILENCE_S:
                host.why_lost = f"nothing was heard of it for {SILENCE_S:g} s"

    def _handle_join(self, host: JoinedHost) -> None:
        why = self._admission.admit(host, {other.name for other in self.present()})
        if why:
            if why == NAME_TAKEN:
                self._control.refused.add(f"{why}, from host '{host.name}'")
            self._show(f"host '{host.name}' is refused: {why}")
            self.send(host, JoinRefused(why))
            return
        self._joined[host.connection] = host
        cpu = host.join.machine.get("cpu")
        self._show(f"host '{host.name}' has joined ({host.join.resources}, {cpu})")
        self.send(host, Welcome(self._title, host.name))

    def _drop(self, host: JoinedHost) -> None:
        """Let a host that was taken for dead know this, so that it ends its sites, and may join again."""
        if not host.is_dropped:
            host.is_dropped = True
            self.send(host, HostDropped(host.why_lost))

    def _handle_report(self, host: JoinedHost, data: bytes) -> None:
        host.heard_s = time.monotonic()
        message = host.session.read(data)
        if isinstance(message, SiteOutput):
            self._print(host, message.text)
        else:
            host.take_report(message)

    def _print(self, host: JoinedHost, text: str) -> None:
        """Print what sites of a host have printed, and append it to the host's log."""
        for line in text.splitlines():
            print(f"[{host.name}] {line}", file=sys.stderr, flush=True)
        if self._log_folder is not None:
            self._log_folder.mkdir(exist_ok=True)
            with (self._log_folder / f"{host.name}.log").open("a", encoding="utf-8") as log:
                log.write(text)

    def close(self, how: str) -> None:
        """Notify all hosts that the run is over, and wait until they have ended their sites."""
        for host in self.present():
            self.send(host, RunEnded(how))
        self.pump_until(lambda: not self.present(), LEAVE_TIMEOUT_S)
        self._control.close(LINGER_MS)
