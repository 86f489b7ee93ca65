"""Hosts without machines, all in this process, that join a run at the same time.

    python -m tests.cluster.many_hosts 1000        (how long it takes until all have joined; some seconds)

Each has a connection of its own, with the run's key, and gives signs of life.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import zmq

from flowrl.channels.keys import Keys, read_key, write_key
from flowrl.cluster.compatibility import machine_facts
from flowrl.cluster.control_socket import ControlSocket
from flowrl.cluster.host_admission import HostAdmission
from flowrl.cluster.joined_hosts import JoinedHosts
from flowrl.cluster.messages import Heartbeat, HostMessage, host_session
from flowrl.cluster.rendezvous import Rendezvous
from tests.cluster.stub_hosts import SESSION, join_message

BEAT_S = 1.0
SOON_S = 120.0


class StubHost:
    """A host that joins, and does nothing but be there."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, address: str) -> None:
        self.session = host_session(SESSION)
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.curve_serverkey = self.socket.curve_publickey = keys.public
        self.socket.curve_secretkey = keys.secret
        self.socket.connect(address)

    def send(self, message: HostMessage) -> None:
        self.socket.send(self.session.pack(message))

    def beat(self) -> None:
        """Give a sign of life, and drop what the run has sent."""
        self.send(Heartbeat())
        while self.socket.poll(0):
            self.socket.recv()

    def close(self) -> None:
        self.socket.close()


def joining_s(count: int, folder: Path, useful_hosts: int = 0) -> float:
    """Let so many hosts join a run at the same time, and return the seconds until all have joined."""
    write_key(folder / "key")
    keys, facts = read_key(folder / "key"), machine_facts()
    control = ControlSocket(Rendezvous("tcp://127.0.0.1:*", key=folder / "key"), useful_hosts)
    run = JoinedHosts(control, HostAdmission(facts), "graph")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, count + 100)
    began_s = time.monotonic()
    stubs = [StubHost(context, keys, control.address) for _ in range(count)]
    for number, stub in enumerate(stubs):
        stub.send(join_message(f"stub-{number}"))
    try:
        _wait_for_all(run, stubs, began_s)
        return time.monotonic() - began_s
    finally:
        for stub in stubs:
            stub.close()
        context.term()
        run.close("all have joined")


def _wait_for_all(run: JoinedHosts, stubs: list[StubHost], began_s: float) -> None:
    beat_s = began_s
    while (joined := len(run.offers())) < len(stubs):
        assert time.monotonic() - began_s < SOON_S, f"{joined} of {len(stubs)} have joined"
        run.pump(0.01)
        if time.monotonic() - beat_s >= BEAT_S:
            beat_s = time.monotonic()
            for stub in stubs:
                stub.beat()


if __name__ == "__main__":
    hosts = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as made:
        print(f"{hosts} hosts have joined within {joining_s(hosts, Path(made), hosts):.1f} s")
