"""Connections of peers that have no key, or send what no site sends."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

DEADLINE_S = 60.0

# Flags of ZMTP frames. More parts follow a LONG_PART.
LONG_PART, COMMAND, LONG_COMMAND = 0x03, 0x04, 0x06


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def connect(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(address)), timeout=10)


def greet(connection: socket.socket, mechanism: bytes) -> None:
    """Exchange the greetings of ZMTP 3.1."""
    connection.sendall(
        b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)
    )
    received = 0
    while received < 64:
        received += len(connection.recv(64 - received))


def announce_frame(connection: socket.socket, nbytes: int) -> None:
    """Send the beginning of a frame of this size."""
    connection.sendall(struct.pack(">BQ", LONG_COMMAND, nbytes))


def announce_ready(connection: socket.socket, socket_type: bytes = b"PUSH") -> None:
    """Complete the handshake of a connection without keys."""
    body = b"\5READY\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type
    connection.sendall(struct.pack("BB", COMMAND, len(body)) + body)


def send_endless_message(
    connection: socket.socket, part_bytes: int, until: Callable[[], object]
) -> None:
    """Send parts of a message that never ends, until a condition holds. What happens to the connection is ignored."""
    part = memoryview(struct.pack(">BQ", LONG_PART, part_bytes) + bytes(part_bytes))
    left = part
    connection.settimeout(0.01)
    deadline = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < deadline, "the condition never held"
        with suppress(OSError):
            left = left[connection.send(left) :] or part


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side closes the connection, and return whether it did so in time."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@contextmanager
def idle_connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections that send nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(connect(address)) for _ in range(count)]
