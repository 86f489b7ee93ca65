"""The control connection between a run and a host: words with plain values, checked before anybody acts on them.

A message is msgpack: the session (which the host chose when it joined), a number that counts the words that way, the
word, its values. Whatever is not the next word of its session is refused, with the reason.
"""

from __future__ import annotations

from typing import Any

import msgpack
import zmq

from flowrl.channels.errors import RefusedMessage, UnsendableValue
from flowrl.machine.network_address import Address

PROTOCOL = 1
LIMIT_BYTES = 64 << 20  # of a message
SESSION_BYTES = 16
BEAT_S = 1.0  # how often both say that they live
SILENCE_S = 8.0  # after which it does not
LEAVE_S = 3.0  # that sites have to end

WORDS: dict[str, tuple[type, ...]] = {
    "beat": (),  # both: it lives
    # a host says
    "join": (int, dict),  # the protocol, and all about it
    "listening": (dict,),  # its ports, by site
    "said": (str,),  # what sites print
    "ended": (str, str),  # a site, and why
    "failed": (str,),  # why it cannot do what it was told
    "left": (str,),  # why; it will say no more
    # a host is told
    "welcome": (str,),  # the graph's name
    "refused": (str,),  # why
    "file": (str, bytes),  # a path in the host's own folder, and a piece of what belongs there
    "listen": (list,),  # the sites that it will have
    "start": (dict, dict),  # what all of these are told, and what each is
    "over": (str,),  # how the run ended
}


class ControlConnection:
    """One session's words, in both directions."""

    def __init__(self, session: bytes) -> None:
        self.session = session
        self._said = self._heard = 0

    def pack(self, word: str, *values: Any) -> bytes:
        """The next word to say."""
        data: bytes = msgpack.packb([self.session, self._said, word, *values])
        if len(data) > LIMIT_BYTES:
            raise UnsendableValue(
                f"control: '{word}' has {len(data)} bytes; {LIMIT_BYTES} are allowed"
            )
        self._said += 1
        return data

    def read(self, data: bytes) -> tuple[str, list[Any]]:
        """The next word that was heard, and its values."""
        session, number, word, values = read(data)
        if session != self.session:
            raise RefusedMessage("another session")
        if number != self._heard:
            raise RefusedMessage("replayed" if number < self._heard else "out of order")
        self._heard += 1
        return word, values


def read(data: bytes) -> tuple[bytes, int, str, list[Any]]:
    """Session, number, word and values of a message of the right form."""
    if len(data) > LIMIT_BYTES:
        raise RefusedMessage("oversized")
    try:
        items = msgpack.unpackb(data, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise RefusedMessage("malformed") from None
    if type(items) is not list or len(items) < 3:
        raise RefusedMessage("malformed")
    session, number, word, *values = items
    if type(session) is not bytes or type(number) is not int or len(session) != SESSION_BYTES:
        raise RefusedMessage("malformed")
    shape = WORDS.get(word) if type(word) is str else None
    if shape is None:
        raise RefusedMessage("unknown word")
    if len(values) != len(shape) or any(
        type(v) is not t for v, t in zip(values, shape, strict=True)
    ):
        raise RefusedMessage("malformed")
    return session, number, word, values


def prepare(socket: zmq.Socket[bytes], address: Address, heard_bytes: int = LIMIT_BYTES) -> None:
    """The settings of both ends."""
    socket.linger = 0
    socket.maxmsgsize = heard_bytes
    socket.sndhwm = 0  # who says too much is not heard; who asks for much is sent it
    socket.ipv6 = ":" in address.machine
    socket.heartbeat_ivl, socket.heartbeat_timeout = int(BEAT_S * 1000), int(SILENCE_S * 1000)
