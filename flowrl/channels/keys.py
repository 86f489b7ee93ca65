"""CURVE keys: who a site is on the network, and whom it lets in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85


@dataclass(frozen=True, slots=True)
class Keys:
    """A site's own pair, and the public keys of the sites that it knows (Z85 text)."""

    public: bytes
    secret: bytes = field(repr=False)
    known: Mapping[str, bytes] = field(default_factory=dict)

    def as_text(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        known = {name: key.decode() for name, key in self.known.items()}
        return {"public": self.public.decode(), "secret": self.secret.decode(), "known": known}

    @classmethod
    def of_text(cls, text: Mapping[str, Any]) -> Keys:
        """What `as_text` gave."""
        known = {name: key.encode() for name, key in text["known"].items()}
        return cls(text["public"].encode(), text["secret"].encode(), known)


def new_pair() -> tuple[bytes, bytes]:
    """A fresh public and secret key."""
    public, secret = zmq.curve_keypair()
    return public, secret


class Gate:
    """Lets in the peers whose public key is known (ZAP, RFC 27), and names each by its key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.names: dict[bytes, str] = {}
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def let_in(self, name: str, public: bytes) -> None:
        """From now on, who has this key is this site."""
        self.names[z85.decode(public)] = name

    def answer(self) -> None:
        """Answer the questions that are there."""
        while self.socket.poll(0):
            version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart()
            name = self.names.get(credentials[0]) if mechanism == b"CURVE" and credentials else None
            verdict = (b"200", b"OK", name.encode()) if name else (b"400", b"unknown key", b"")
            self.socket.send_multipart([version, request, *verdict, b""])
