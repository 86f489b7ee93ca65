"""Sites with several addresses: each peer uses one of them, and no peer can use another's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from flowrl.channels import SiteChannels, SiteConnections
from flowrl.channels.keys import Keys, new_pair
from flowrl.channels.messages import CREDIT, HeaderCodec
from tests.channels.site_pairs import RUN, poll_until

Sites = dict[str, SiteChannels]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    """Connect the site `hub` to `near` by a Unix socket, and to `far` over TCP with keys."""
    hub, far = new_pair(), new_pair()
    connections = {
        "hub": SiteConnections("hub", RUN, keys=Keys(*hub, {"far": far[0]}), shared_bytes=0),
        "far": SiteConnections("far", RUN, keys=Keys(*far, {"hub": hub[0]})),
        "near": SiteConnections("near", RUN, shared_bytes=0),
    }
    at_folder = connections["hub"].listen(f"ipc://{tmp_path}/hub")
    at_network = connections["hub"].listen("tcp://127.0.0.1:*")
    connections["hub"].connect("near", connections["near"].listen(f"ipc://{tmp_path}/near"))
    connections["hub"].connect("far", connections["far"].listen("tcp://127.0.0.1:*"))
    connections["near"].connect("hub", at_folder)
    connections["far"].connect("hub", at_network)
    made = {name: SiteChannels(site_connections) for name, site_connections in connections.items()}
    yield made
    for channels in made.values():
        channels.close(drop=True)


def test_each_peer_reaches_a_site_at_its_own_address(sites: Sites) -> None:
    channels = {
        n: (sites[n].open_sender(n, "hub"), sites["hub"].open_receiver(n, n))
        for n in ("near", "far")
    }
    for name, (sender, receiver) in channels.items():
        sender.send(name)
        poll_until(lambda end=receiver: len(end), *sites.values())  # type: ignore[misc]
        assert receiver.take()[0] == name


@pytest.mark.parametrize(("liar", "claims"), [("far", "near"), ("near", "far")])
def test_a_message_over_another_sites_transport_is_refused(
    sites: Sites, liar: str, claims: str
) -> None:
    """One peer sends a message in the other's name over its own transport."""
    connection = sites[liar].connections.connections["hub"]
    connection._headers = HeaderCodec(RUN, claims)  # type: ignore[attr-defined]
    sites[liar].connections.connections["hub"].send_frame(CREDIT, "x", 0, 0)
    sites[liar].flush()
    hub = sites["hub"].connections
    poll_until(lambda: hub.traffic().refused, *sites.values())
    assert hub.traffic().refused == {("unknown site", "?"): 1}


def test_a_peer_can_connect_before_the_site_has_started() -> None:
    """Messages that arrive at a listening socket before its site exists are not lost."""
    door = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{door.getsockname()[1]}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    early = context.socket(zmq.PUSH)
    early.linger = 0
    early.connect(address)
    early.send(b"early")
    door.setblocking(True)
    connections = SiteConnections("late", RUN)
    assert connections.listen(address, door.detach()) == address
    channels = SiteChannels(connections)
    poll_until(lambda: connections.traffic().refused, channels)
    assert connections.traffic().refused == {("malformed", "?"): 1}
    channels.close(drop=True)
    early.close()
    context.term()
