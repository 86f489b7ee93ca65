"""The socket on which a run hears its hosts, and lets in those that have its key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import zmq

from flowrl.channels.keys import HOW_TO_MAKE, Keys, read_key
from flowrl.channels.zmq_sockets import Authenticator
from flowrl.cluster.control import prepare
from flowrl.core.errors import UsageError
from flowrl.machine.network_address import Address, parse_address

HEARD_BYTES = 1 << 20  # of a message from a host
DRAIN = 1000  # messages that one look takes in at most
WATCHED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
NO_KEY = "a connection without the run's key"


def address_with_key(text: str, key: Path | None, option: str) -> Address:
    """An address that may be used without a key only if nobody else can reach it."""
    address = parse_address(text, option)
    if key is None and not address.is_loopback:
        raise UsageError(
            f"{option} {text}: others can reach this address, so it needs --key FILE; {HOW_TO_MAKE}"
        )
    return address


def key_of(path: Path | None) -> Keys | None:
    """The key in a file, if there is to be one."""
    return read_key(path) if path is not None else None


class ControlSocket:
    """Owned by one thread; never blocks but in `receive`."""

    def __init__(self, listen: str, key: Path | None) -> None:
        address = address_with_key(listen, key, "--listen")
        keys = key_of(key)
        self.machine = address.machine
        self.refused: Counter[str] = Counter()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        prepare(self._socket, address, heard_bytes=HEARD_BYTES)
        self._socket.rcvhwm = DRAIN
        self._socket.router_mandatory = True  # so that it is known who is gone
        self._monitor = self._socket.get_monitor_socket(WATCHED)
        self._gate: Authenticator | None = None
        if keys is not None:
            self._lock(keys)
        self.address = self._bind(address)
        self._poller = zmq.Poller()
        for socket in (self._socket, self._monitor, *([self._gate.socket] if self._gate else [])):
            self._poller.register(socket, zmq.POLLIN)

    def _lock(self, keys: Keys) -> None:
        self._gate = Authenticator(self._context)
        self._gate.admit("a host", keys.public)
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.secret

    def _bind(self, address: Address) -> str:
        try:
            self._socket.bind(str(address))
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"--listen {address}: cannot listen: {error}") from None
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode()

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        """What has come, as pairs of who (for this socket) and what."""
        self._poller.poll(int(timeout_s * 1000))
        if self._gate is not None:
            self._gate.answer_requests()
        while self._monitor.poll(0):
            self._monitor.recv_multipart()
            self.refused[NO_KEY] += 1
        found = []
        for _ in range(DRAIN):
            try:
                who, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(parts) == 1:
                found.append((who, parts[0]))
            else:
                self.refused["malformed: not one part"] += 1
        return found

    def send(self, who: bytes, data: bytes) -> bool:
        """Whether that can still be sent there."""
        try:
            self._socket.send_multipart([who, data], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Nobody is heard any more; what was sent may take so long to leave."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close(linger_ms)
        if self._gate is not None:
            self._gate.socket.close()
        self._context.term()
