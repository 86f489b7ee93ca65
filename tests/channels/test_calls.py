"""Calls across sites: exactly once, answered while the site waits, and never two at a time in one service."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowrl.channels import InboxRegistry, SiteChannels, SiteConnections, WaitTimeout
from flowrl.channels.calls import CallClient, CallServer, Wait
from flowrl.channels.errors import PeerLost
from tests.channels.pairs import SitePair


def up_to(channels: SiteChannels, deadline_s: float) -> Wait:
    """How a caller waits."""
    return lambda lane: channels.wait(lane, deadline_s)


def served(sites: SitePair, serve: Any, deadline_s: float = 10) -> CallClient:
    """A calls b, which works whenever it looks at its mail."""
    requests = sites.open_channel(name="requests")
    answers = sites.b.open_sender("answers", "a"), sites.a.open_receiver("answers", "b")
    CallServer(sites.b, requests[1], answers[0], serve, lambda error: f"unsent: {error}")
    return CallClient(requests[0], answers[1], up_to(sites.a, deadline_s))


class Waiting:
    """Site b, that waits in a thread of its own; and what ended it."""

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
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.error

    def stop(self) -> None:
        self._done.set()
        if self._thread.ident:
            self.ended()


@pytest.fixture
def waiting(sites: SitePair) -> Iterator[Waiting]:
    site = Waiting(sites.b)
    yield site
    site.stop()


def test_a_call_is_answered_by_a_site_that_waits(sites: SitePair, waiting: Waiting) -> None:
    call = served(sites, lambda request: (request[0], sum(request[1:])))
    waiting.start()
    for i in range(20):
        assert call(("add", i, np.int64(1))) == ("add", i + 1)
    assert waiting.error is None


def test_an_answer_that_cannot_be_sent_is_replaced(sites: SitePair, waiting: Waiting) -> None:
    if sites.kind == "inproc":
        pytest.skip("between threads everything can be given")
    call = served(sites, lambda request: object() if request == "object" else request)
    waiting.start()
    assert str(call("object")).startswith("unsent: cannot send a builtins.object")
    assert call("word") == "word"


def test_the_answer_to_a_call_that_was_given_up_is_passed_over(sites: SitePair) -> None:
    call = served(sites, lambda request: request.upper(), deadline_s=0.05)
    with pytest.raises(WaitTimeout):
        call("first")
    call._wait = up_to(sites.a, 10)
    waiting = Waiting(sites.b)
    waiting.start()
    assert call("second") == "SECOND"
    waiting.stop()


def test_a_failing_desk_ends_its_site(sites: SitePair, waiting: Waiting) -> None:
    def serve(request: Any) -> Any:
        raise ValueError("no such action")

    call = served(sites, serve)
    call._requests.send((1, "step"))
    sites.a.flush()
    waiting.start()
    assert str(waiting.ended()) == "no such action"


def test_a_call_that_nobody_answers_ends_at_its_deadline(sites: SitePair) -> None:
    call = served(sites, lambda request: None, deadline_s=0.1)
    with pytest.raises(WaitTimeout, match="channel 'answers' with site 'b'"):
        call("step")


def test_a_service_begins_no_second_call_while_it_waits() -> None:
    threads: InboxRegistry = {}
    names = ("front", "middle", "end")
    all_connections = {name: SiteConnections(name, inboxes=threads) for name in names}
    for name, connections in all_connections.items():
        for peer in names:
            if peer != name:
                connections.connect(peer, f"inproc://{peer}")
    front, middle, end = (SiteChannels(all_connections[name]) for name in names)
    to_middle = front.open_sender("q", "middle")
    requests, answers = middle.open_receiver("q", "front"), middle.open_sender("r", "front")
    from_middle = front.open_receiver("r", "middle")
    lanes = middle.open_sender("q2", "end"), middle.open_receiver("r2", "end")
    call_end = CallClient(*lanes, up_to(middle, 10))
    at_end, back = end.open_receiver("q2", "middle"), end.open_sender("r2", "middle")
    depth, deepest = [0], [0]

    def serve(word: str) -> Any:
        depth[0] += 1
        deepest[0] = max(deepest[0], depth[0])
        answer = call_end(word)
        depth[0] -= 1
        return answer

    CallServer(middle, requests, answers, serve, str)
    CallServer(end, at_end, back, str.upper, str)
    for number, word in enumerate(("a", "b", "c")):
        to_middle.send((number, word))
    done = threading.Event()
    thread = threading.Thread(target=lambda: end.wait_until(done.is_set, [], 20))
    thread.start()
    middle.wait_until(lambda: answers.statistics().tokens == 3, [], 10)
    done.set()
    thread.join(10)
    front.drain()
    assert [from_middle.take()[0] for _ in range(3)] == [(0, "A"), (1, "B"), (2, "C")]
    assert deepest == [1]
    for channels in (front, middle, end):
        channels.close()


def test_a_caller_that_is_gone_needs_no_answer(sites: SitePair) -> None:
    call = served(sites, lambda request: "answer")
    call._requests.send((1, "step"))
    call.replies.close()
    sites.poll_until(lambda: sites.b._senders["answers"].send_error)
    assert str(sites.b._senders["answers"].send_error).startswith("channel 'answers'")


def test_a_call_that_was_begun_is_answered_while_others_go_on(sites: SitePair) -> None:
    call = served(sites, str.upper)
    first = call.begin("a")
    assert not call.has_reply(first)
    sites.poll_until(lambda: sites.a.drain() or call.has_reply(first))
    assert call.has_reply(first)
    assert call.wait_for_reply(first) == "A"
    given_up, second = call.begin("b"), call.begin("c")
    sites.poll_until(lambda: sites.a.drain() or call.has_reply(second))
    assert not call.has_reply(given_up)
    assert call.wait_for_reply(second) == "C"


def test_a_wait_ends_by_a_descriptor_too(sites: SitePair) -> None:
    """Whatever else the mailbox polls."""
    ear, rope = os.pipe()
    try:
        with sites.a.connections.wake_on([ear]):
            os.write(rope, b".")
            sites.a.wait_until(lambda: bool(select.select([ear], [], [], 0)[0]), [], 10)
        os.read(ear, 1)
        os.write(rope, b".")
        assert sites.a.poll(0.0) is False
    finally:
        os.close(ear), os.close(rope)


def test_a_wait_for_a_dead_service_ends(sites: SitePair) -> None:
    call = served(sites, lambda request: None)
    sites.a.find_failure = lambda peer: "it was killed"
    with pytest.raises(PeerLost, match="site 'b' is lost: it was killed"):
        call("step")
