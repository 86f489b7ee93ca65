"""Sites in threads pass tokens by reference and wake each other."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from flowrl.channels import ChannelLimits, InboxRegistry, SiteChannels, SiteConnections
from flowrl.channels.inproc import Inbox, size_bytes
from flowrl.core.batch import Batch
from flowrl.core.state import State


def connect_two_sites(threads: InboxRegistry) -> tuple[SiteChannels, SiteChannels]:
    a, b = SiteConnections("a", inboxes=threads), SiteConnections("b", inboxes=threads)
    a.connect("b", b.inproc_address)
    b.connect("a", a.inproc_address)
    return SiteChannels(a), SiteChannels(b)


def test_a_token_between_threads_is_the_same_object() -> None:
    a, b = connect_two_sites({})
    sender, receiver = a.open_sender("x", "b"), b.open_receiver("x", "a")
    batch = Batch({"x": np.arange(3)})
    sender.send(batch)
    b.drain()
    assert receiver.take()[0] is batch
    a.close()
    b.close()


def test_threads_wake_each_other_immediately() -> None:
    a, b = connect_two_sites({})
    there, arrives = a.open_sender("there", "b"), b.open_receiver("there", "a")
    back, returns = b.open_sender("back", "a"), a.open_receiver("back", "b")

    def echo() -> None:
        for _ in range(200):
            b.wait(arrives, 10)
            back.send(arrives.take()[0])

    thread = threading.Thread(target=echo)
    thread.start()
    began = time.perf_counter()
    for i in range(200):
        there.send(i)
        a.wait(returns, 10)
        assert returns.take()[0] == i
    assert time.perf_counter() - began < 40, "each wait ends by a wake-up and not by polling"
    thread.join(60)
    a.close()
    b.close()


def test_many_threads_fill_one_inbox_and_nothing_is_lost() -> None:
    threads: InboxRegistry = {}
    hub = SiteChannels(SiteConnections("hub", inboxes=threads))
    names = [f"site{i}" for i in range(8)]
    all_connections = [SiteConnections(name, inboxes=threads) for name in names]
    receivers = []
    for name, connections in zip(names, all_connections, strict=True):
        hub.connections.connect(name, connections.inproc_address)
        connections.connect("hub", hub.connections.inproc_address)
        receivers.append(hub.open_receiver(name, name, limits=ChannelLimits(4)))

    def fill(connections: SiteConnections) -> None:
        channels = SiteChannels(connections)
        sender = channels.open_sender(connections.site, "hub", limits=ChannelLimits(4))
        for i in range(100):
            channels.wait(sender, 20)
            sender.send((connections.site, i))
        channels.wait_until(lambda: sender.all_taken, [sender], 20)

    workers = [
        threading.Thread(target=fill, args=(connections,)) for connections in all_connections
    ]
    for worker in workers:
        worker.start()
    for i in range(100):
        for name, receiver in zip(names, receivers, strict=True):
            hub.wait(receiver, 20)
            assert receiver.take()[0] == (name, i)
    hub.flush()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    for connections in (hub.connections, *all_connections):
        connections.close()


def test_a_site_can_have_peers_in_threads_and_in_processes(tmp_path: object) -> None:
    threads: InboxRegistry = {}
    a, b = connect_two_sites(threads)
    c = SiteConnections("c", b"")
    there = c.listen(f"ipc://{tmp_path}/c")
    c.connect("b", b.connections.listen(f"ipc://{tmp_path}/b"))
    b.connections.connect("c", there)
    far = SiteChannels(c)
    from_a, from_c = b.open_receiver("a-b", "a"), b.open_receiver("c-b", "c")
    waker = threading.Thread(target=lambda: a.open_sender("a-b", "b").send("by reference"))
    waker.start()
    b.wait(from_a, 10)
    far.open_sender("c-b", "b").send("by socket")
    far.flush()
    b.wait(from_c, 10)
    assert (from_a.take()[0], from_c.take()[0]) == ("by reference", "by socket")
    waker.join()
    for channels in (a, b, far):
        channels.close(drop=True)


def test_a_closed_inbox_wakes_no_thread() -> None:
    inbox = Inbox()
    assert inbox.prepare_to_sleep()
    inbox.close()
    inbox.put("late", [1])  # its descriptor may belong to another file already


def test_a_site_with_queued_frames_does_not_sleep() -> None:
    inbox = Inbox()
    inbox.put("early", [1])
    assert not inbox.prepare_to_sleep()
    assert inbox.take_all() == [("early", [1])]
    assert inbox.prepare_to_sleep()
    inbox.close()


def test_a_site_among_threads_does_not_import_zeromq() -> None:
    code = (
        "import sys; from flowrl.channels import SiteChannels, SiteConnections\n"
        "SiteChannels(SiteConnections('a')).close(); assert 'zmq' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 8),
        ("abc", 3),
        (b"abcd", 4),
        (np.zeros(10), 80),
        (Batch({"x": np.zeros((10, 2)), "y": np.zeros(10, np.int8)}), 170),
        (State({"w": np.zeros(5, np.float32)}), 20),
        ([np.zeros(2), {"k": "word"}, (b"x",)], 21),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_size_of_a_value_is_about_what_it_holds(value: object, size: int) -> None:
    assert size_bytes(value) == size
