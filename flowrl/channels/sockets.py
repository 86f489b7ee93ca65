"""A site's sockets: one bound for all that comes, and one to each other site.

Unix sockets lie in a folder that only this user may enter. On the network CURVE encrypts and authenticates; without
keys only the loopback is allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import zmq

from flowrl.channels.arena import can_share
from flowrl.channels.errors import RefusedMessage
from flowrl.channels.items import OPENED, SLAB, Item
from flowrl.channels.keys import Gate, Keys
from flowrl.channels.mapped import Mapped
from flowrl.channels.message import Heads, place
from flowrl.channels.socketpost import SocketPost
from flowrl.core.errors import UsageError

LIMIT_BYTES = 1 << 30  # of a frame, and of a token
BATCH = 64  # messages that one look takes in at most
NOBLOCK, READABLE = int(zmq.NOBLOCK), int(zmq.POLLIN)  # the enumeration's arithmetic is slow
LINGER_MS = 1000  # for what was sent when the site ends
RECONNECT_MS, RECONNECT_MAX_MS = 10, 1000
NEAR_MAX_MS = (
    40  # on this host trying costs next to nothing, and sites that start wait for each other
)
HEARTBEAT_MS, SILENCE_MS = 2000, 10_000  # on the network, where a host may vanish without a word
LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")

Mail = tuple[str, Item]


class Sockets:
    """All sockets of one site; owned by its thread."""

    def __init__(
        self,
        run: bytes,
        me: str,
        keys: Keys | None = None,
        limit_bytes: int = LIMIT_BYTES,
        shared_bytes: int = 0,
        refuse: Callable[[str, str], None] = lambda reason, peer: None,
    ) -> None:
        """`keys`: for the network; `shared_bytes`: of shared memory for each site on this host; `refuse`: told the
        reason and the site ('?': unknown) of what is refused."""
        self.keys, self.limit_bytes = keys, limit_bytes
        self.shared_bytes = shared_bytes if can_share() else 0
        self.refuse = refuse
        self.messages = self.bytes = self.cuts = 0
        self._mapped: dict[str, Mapped] = {}  # of the peers that may share memory
        self._posts: dict[str, SocketPost] = {}
        self._heads = Heads(run, me)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()  # its own: one owner
        self._inbound: list[zmq.Socket[bytes]] = []
        self._monitors: list[zmq.Socket[bytes]] = []
        self._gate: Gate | None = None
        self._locked: set[zmq.Socket[bytes]] = (
            set()
        )  # sockets whose mail comes with its sender's key
        self._authenticated: set[str] = set()  # peers whose mail must come with their key

    # addresses

    def listen(self, address: str, listening_fd: int | None = None) -> str:
        """Bind `ipc://path`, or `tcp://host:port` (port `*`: any); the address that others connect to.

        `listening_fd` is the descriptor of a socket that listens there already, for whoever was faster than this site.
        """
        socket = self._context.socket(zmq.PULL)
        socket.linger = 0
        if listening_fd is not None:
            socket.setsockopt(zmq.USE_FD, listening_fd)
        socket.maxmsgsize = self.limit_bytes
        self._inbound.append(socket)
        if address.startswith("tcp:"):
            self._secure(address, socket)
        self._monitors.append(socket.get_monitor_socket(WATCHED))
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise UsageError(f"{address}: cannot listen: {error}") from None
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode()

    def _secure(self, address: str, socket: zmq.Socket[bytes]) -> None:
        _network(socket, address)
        if self.keys is None:
            if not address.startswith(LOOPBACK):
                what = f"{address}: an address that others can reach needs keys"
                raise UsageError(f"{what}; give each site its keys, or listen on tcp://127.0.0.1")
            return
        self._gate = self._gate or Gate(self._context)
        for name, public in self.keys.known.items():
            self._gate.let_in(name, public)
        socket.curve_server = True
        socket.curve_secretkey = self.keys.secret
        self._locked.add(socket)

    def connect(self, peer: str, address: str) -> SocketPost:
        """The way to another site."""
        socket = self._context.socket(zmq.PUSH)
        socket.linger = LINGER_MS
        socket.sndhwm = 0  # lanes bound what is under way, and a site never blocks in a send
        near = address.startswith("ipc:")
        socket.reconnect_ivl = RECONNECT_MS
        socket.reconnect_ivl_max = NEAR_MAX_MS if near else RECONNECT_MAX_MS
        if near:
            self._mapped[peer] = Mapped()
        else:
            _network(socket, address)
            self._lock(peer, socket)
        socket.connect(address)
        shared = self.shared_bytes if near else 0
        post = SocketPost(socket, self._heads, self.limit_bytes, shared)
        self._posts[peer] = post
        return post

    def _lock(self, peer: str, socket: zmq.Socket[bytes]) -> None:
        if self.keys is not None:
            self._authenticated.add(peer)
            socket.curve_serverkey = self.keys.known[peer]
            socket.curve_publickey = self.keys.public
            socket.curve_secretkey = self.keys.secret

    def disconnect(self, peer: str) -> None:
        """Take no more of this site's mail."""
        self._posts.pop(peer, None)
        self._authenticated.discard(peer)
        self._mapped.pop(peer, Mapped()).close()

    # mail

    def watch(self, register: Callable[[Any, int], Any]) -> None:
        """Tell a poller what may bring something."""
        for socket in (*self._inbound, *self._monitors):
            register(socket, zmq.POLLIN)
        if self._gate:
            register(self._gate.socket, zmq.POLLIN)

    def receive(self, ready: Iterable[tuple[Any, int]]) -> list[Mail]:
        """What has come to the sockets that a poller found ready."""
        mail: list[Mail] = []
        for socket, _ in ready:
            if socket in self._inbound:
                self._receive(socket, mail)
            elif self._gate and socket is self._gate.socket:
                self._gate.answer()
            elif socket in self._monitors:
                self.look()
        return mail

    def _receive(self, socket: zmq.Socket[bytes], mail: list[Mail]) -> None:
        for _ in range(BATCH):
            try:
                head = socket.recv(NOBLOCK, copy=False)
            except zmq.Again:  # what made it ready was cut off half-way
                return
            rest = socket.recv_multipart(NOBLOCK, copy=False) if head.more else []
            self._open(head, rest, mail, socket in self._locked)
            events: Any = socket.get(zmq.EVENTS)  # asked, as failing would cost more
            if not events & READABLE:
                return

    def _open(self, head: zmq.Frame, rest: list[zmq.Frame], mail: list[Mail], locked: bool) -> None:
        """Add a message's items to the mail."""
        self.messages += 1
        self.bytes += len(head)
        frames = []
        for frame in rest:
            frames.append(np.frombuffer(frame.buffer.toreadonly(), np.uint8))
            self.bytes += len(frame)
        sender = "?"
        try:
            name, body_bytes, items = self._heads.read(head.buffer)
            sender = self._checked_sender(name, head, locked)
            mapped = self._mapped.get(sender)
            placed = place(items, body_bytes, frames, mapped.array if mapped else None)
        except RefusedMessage as error:
            self.refuse(error.reason, sender)
            return
        for item in placed:
            if item[0] < SLAB:
                mail.append((sender, item))
            else:
                self._memory(sender, item)

    def _memory(self, peer: str, item: Item) -> None:
        """What a peer says of shared memory."""
        mapped, post = self._mapped.get(peer), self._posts[peer]
        try:
            if mapped is None or post.arena is None:
                raise RefusedMessage("shared memory")
            if item[0] == SLAB:
                post.say(OPENED, item[1], mapped.open(*item[1:]))
                post.flush()
            elif item[0] == OPENED:
                post.arena.opened(*item[1:])
            else:
                mapped.forget(*item[1:])
        except RefusedMessage as error:
            self.refuse(error.reason, peer)

    def _checked_sender(self, name: str, head: zmq.Frame, locked: bool) -> str:
        """A site on the network comes with its key; one of this machine does not come that way."""
        if name not in self._posts:
            raise RefusedMessage("unknown site")
        if locked != (name in self._authenticated) or (locked and head.get("User-Id") != name):
            raise RefusedMessage("another site's key")
        return name

    def look(self) -> None:
        """Count what happened to connections."""
        for monitor in self._monitors:
            while monitor.poll(0):
                event = monitor.recv_multipart(NOBLOCK)[0][:2]  # the rest is of no interest
                if int.from_bytes(event, sys.byteorder) == zmq.EVENT_DISCONNECTED:
                    self.cuts += 1
                else:
                    self.refuse("handshake", "?")

    def close(self) -> None:
        """Close all; what was sent may take a second to leave."""
        for mapped in self._mapped.values():
            mapped.close()
        for socket in self._inbound:
            socket.disable_monitor()
            socket.close()
        for monitor in self._monitors:
            monitor.close()
        if self._gate:
            self._gate.socket.close()
        self._context.term()


def _network(socket: zmq.Socket[bytes], address: str) -> None:
    socket.ipv6 = "[" in address
    socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, SILENCE_MS


WATCHED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
