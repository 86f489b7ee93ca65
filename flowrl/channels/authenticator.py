"""Answers ZeroMQ's requests to authenticate the peers of CURVE connections (ZAP, RFC 27)."""

from __future__ import annotations

import zmq
from zmq.utils import z85


class Authenticator:
    """Admits the peers whose public key is known, and names each by its key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._names: dict[bytes, str] = {}
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def admit(self, name: str, public_key: bytes) -> None:
        self._names[z85.decode(public_key)] = name

    def answer_requests(self) -> None:
        while self.socket.poll(0):
            version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart()
            curve = mechanism == b"CURVE" and credentials
            name = self._names.get(credentials[0]) if curve else None
            verdict = (b"200", b"OK", name.encode()) if name else (b"400", b"unknown key", b"")
            self.socket.send_multipart([version, request, *verdict, b""])

    def close(self) -> None:
        self.socket.close()
