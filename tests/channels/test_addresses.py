"""Sites with several addresses: each peer by its own way, and nobody by another's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from flowrl.channels import SiteChannels, SiteConnections
from flowrl.channels.keys import Keys, new_pair
from flowrl.channels.messages import CREDIT, HeaderCodec
from tests.channels.pairs import RUN, poll_until

Sites = dict[str, SiteChannels]


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    """`hub` is reached by `near` through a folder and by `far` over the network, with keys."""
    hub, far = new_pair(), new_pair()
    boxes = {
        "hub": SiteConnections("hub", RUN, keys=Keys(*hub, {"far": far[0]}), shared_bytes=0),
        "far": SiteConnections("far", RUN, keys=Keys(*far, {"hub": hub[0]})),
        "near": SiteConnections("near", RUN, shared_bytes=0),
    }
    at_folder = boxes["hub"].listen(f"ipc://{tmp_path}/hub")
    at_network = boxes["hub"].listen("tcp://127.0.0.1:*")
    boxes["hub"].connect("near", boxes["near"].listen(f"ipc://{tmp_path}/near"))
    boxes["hub"].connect("far", boxes["far"].listen("tcp://127.0.0.1:*"))
    boxes["near"].connect("hub", at_folder)
    boxes["far"].connect("hub", at_network)
    made = {name: SiteChannels(box) for name, box in boxes.items()}
    yield made
    for channels in made.values():
        channels.close(drop=True)


def test_a_site_is_reached_by_each_peer_in_its_own_way(sites: Sites) -> None:
    lanes = {
        n: (sites[n].open_sender(n, "hub"), sites["hub"].open_receiver(n, n))
        for n in ("near", "far")
    }
    for name, (sender, receiver) in lanes.items():
        sender.send(name)
        poll_until(lambda lane=receiver: len(lane), *sites.values())  # type: ignore[misc]
        assert receiver.take()[0] == name


@pytest.mark.parametrize(("liar", "claims"), [("far", "near"), ("near", "far")])
def test_a_site_does_not_come_by_anothers_way(sites: Sites, liar: str, claims: str) -> None:
    """`far` has a key, and says that it is `near`; and the other way round."""
    post = sites[liar].connections.connections["hub"]
    post._headers = HeaderCodec(RUN, claims)  # type: ignore[attr-defined]
    sites[liar].connections.connections["hub"].send_frame(CREDIT, "x", 0, 0)
    sites[liar].flush()
    hub = sites["hub"].connections
    poll_until(lambda: hub.traffic().refused, *sites.values())
    assert hub.traffic().refused == {("unknown site", "?"): 1}


def test_a_site_is_reached_before_it_is_there() -> None:
    """Somebody listens at its address already; what has come by then is not lost."""
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
