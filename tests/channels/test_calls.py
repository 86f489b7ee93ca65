"""Calls across sites: each happens exactly once, a waiting site answers, and a server handles one call at a time."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowrl.channels import InboxRegistry, SiteChannels, SiteConnections, WaitTimeout
from flowrl.channels.calls import CallClient, CallServer, WaitUntilReady
from flowrl.channels.errors import PeerLost
from tests.channels.site_pairs import SitePair


def wait_with_deadline(channels: SiteChannels, deadline_s: float) -> WaitUntilReady:
    """Return the wait of a client."""
    return lambda end: channels.wait(end, deadline_s)


def start_server(sites: SitePair, serve: Any, deadline_s: float = 10) -> CallClient:
    """Return the client on site a of a server on site b, which calls `serve` whenever b processes frames."""
    requests = sites.open_channel(name="requests")
    replies = sites.b.open_sender("replies", "a"), sites.a.open_receiver("replies", "b")
    CallServer(sites.b, requests[1], replies[0], serve, lambda error: f"unsent: {error}")
    return CallClient(requests[0], replies[1], wait_with_deadline(sites.a, deadline_s))


class WaitingSite:
    """Site b, which waits in a thread of its own, and the error that ended it."""

    def __init__(self, channels: SiteChannels) -> None:
        self.error: BaseException | None = None
        self._channels, self._done = channels, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._channels.wait_until(self._done.is_set, [], 20)
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def ended(self) -> BaseException | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error

    def stop(self) -> None:
        self._done.set()
        if self._thread.ident:
            self.ended()


@pytest.fixture
def waiting(sites: SitePair) -> Iterator[WaitingSite]:
    site = WaitingSite(sites.b)
    yield site
    site.stop()


@pytest.mark.slow
def test_a_call_is_answered_by_a_site_that_waits(sites: SitePair, waiting: WaitingSite) -> None:
    call = start_server(sites, lambda request: (request[0], sum(request[1:])))
    waiting.start()
    for i in range(20):
        assert call(("add", i, np.int64(1))) == ("add", i + 1)
    assert waiting.error is None


def test_a_reply_that_cannot_be_sent_is_replaced(sites: SitePair, waiting: WaitingSite) -> None:
    if sites.kind == "inproc":
        pytest.skip("threads can pass every value")
    call = start_server(sites, lambda request: object() if request == "object" else request)
    waiting.start()
    assert str(call("object")).startswith("unsent: cannot send a builtins.object")
    assert call("word") == "word"


@pytest.mark.slow
def test_the_reply_to_an_abandoned_call_is_skipped(sites: SitePair) -> None:
    call = start_server(sites, lambda request: request.upper(), deadline_s=0.05)
    with pytest.raises(WaitTimeout):
        call("first")
    call._wait = wait_with_deadline(sites.a, 10)
    waiting = WaitingSite(sites.b)
    waiting.start()
    assert call("second") == "SECOND"
    waiting.stop()


def test_an_error_in_a_call_server_ends_its_site(sites: SitePair, waiting: WaitingSite) -> None:
    def serve(request: Any) -> Any:
        raise ValueError("no such action")

    call = start_server(sites, serve)
    call._requests.send((1, "step"))
    sites.a.flush()
    waiting.start()
    assert str(waiting.ended()) == "no such action"


def test_a_call_without_a_reply_ends_at_its_deadline(sites: SitePair) -> None:
    call = start_server(sites, lambda request: None, deadline_s=0.1)
    with pytest.raises(WaitTimeout, match="channel 'replies' with site 'b'"):
        call("step")


def test_a_server_starts_no_second_call_while_it_waits() -> None:
    threads: InboxRegistry = {}
    names = ("front", "middle", "end")
    all_connections = {name: SiteConnections(name, inboxes=threads) for name in names}
    for name, connections in all_connections.items():
        for peer in names:
            if peer != name:
                connections.connect(peer, f"inproc://{peer}")
    front, middle, end = (SiteChannels(all_connections[name]) for name in names)
    to_middle = front.open_sender("q", "middle")
    requests, replies = middle.open_receiver("q", "front"), middle.open_sender("r", "front")
    from_middle = front.open_receiver("r", "middle")
    ends = middle.open_sender("q2", "end"), middle.open_receiver("r2", "end")
    call_end = CallClient(*ends, wait_with_deadline(middle, 10))
    at_end, back = end.open_receiver("q2", "middle"), end.open_sender("r2", "middle")
    depth, deepest = [0], [0]

    def serve(word: str) -> Any:
        depth[0] += 1
        deepest[0] = max(deepest[0], depth[0])
        reply = call_end(word)
        depth[0] -= 1
        return reply

    CallServer(middle, requests, replies, serve, str)
    CallServer(end, at_end, back, str.upper, str)
    for number, word in enumerate(("a", "b", "c")):
        to_middle.send((number, word))
    done = threading.Event()
    thread = threading.Thread(target=lambda: end.wait_until(done.is_set, [], 20))
    thread.start()
    middle.wait_until(lambda: replies.statistics().tokens == 3, [], 10)
    done.set()
    thread.join(60)
    front.drain()
    assert [from_middle.take()[0] for _ in range(3)] == [(0, "A"), (1, "B"), (2, "C")]
    assert deepest == [1]
    for channels in (front, middle, end):
        channels.close()


def test_a_client_that_has_closed_gets_no_reply(sites: SitePair) -> None:
    call = start_server(sites, lambda request: "reply")
    call._requests.send((1, "step"))
    call.replies.close()
    sites.poll_until(lambda: sites.b._senders["replies"].send_error)
    assert str(sites.b._senders["replies"].send_error).startswith("channel 'replies'")


def test_a_call_can_be_started_without_waiting(sites: SitePair) -> None:
    call = start_server(sites, str.upper)
    first = call.begin("a")
    assert not call.has_reply(first)
    sites.poll_until(lambda: sites.a.drain() or call.has_reply(first))
    assert call.has_reply(first)
    assert call.wait_for_reply(first) == "A"
    given_up, second = call.begin("b"), call.begin("c")
    sites.poll_until(lambda: sites.a.drain() or call.has_reply(second))
    assert not call.has_reply(given_up)
    assert call.wait_for_reply(second) == "C"


def test_a_file_descriptor_ends_a_wait(sites: SitePair) -> None:
    """A readable descriptor ends a wait over every transport, and is not polled afterwards."""
    reading_fd, writing_fd = os.pipe()
    try:
        with sites.a.connections.wake_on([reading_fd]):
            os.write(writing_fd, b".")
            sites.a.wait_until(lambda: bool(select.select([reading_fd], [], [], 0)[0]), [], 10)
        os.read(reading_fd, 1)
        os.write(writing_fd, b".")
        assert sites.a.poll(0.0) is False
    finally:
        os.close(reading_fd), os.close(writing_fd)


@pytest.mark.slow
def test_a_wait_for_a_dead_service_ends(sites: SitePair) -> None:
    call = start_server(sites, lambda request: None)
    sites.a.find_failure = lambda peer: "it was killed"
    with pytest.raises(PeerLost, match="site 'b' is lost: it was killed"):
        call("step")
