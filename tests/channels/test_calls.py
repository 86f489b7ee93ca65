"""Calls across sites: exactly once, answered while the site waits, and never two at a time in one service."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowrl.channels import CallFailed, Exchange, Late, Mailbox, Threads
from flowrl.channels.calls import Caller, Desk
from flowrl.channels.errors import PeerLost
from flowrl.state import START, Clock, Count
from tests.channels.pairs import Pair


def served(sites: Pair, serve: Any) -> Caller:
    """A calls b, which works whenever it looks at its mail."""
    requests = sites.lane(name="requests")
    answers = sites.b.sender("answers", "a"), sites.a.receiver("answers", "b")
    Desk(sites.b, requests[1], answers[0], serve)
    return Caller(sites.a, requests[0], answers[1])


class Waiting:
    """Site b, that waits in a thread of its own; and what ended it."""

    def __init__(self, exchange: Exchange) -> None:
        self.error: BaseException | None = None
        self._exchange, self._done = exchange, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._exchange.wait_until(self._done.is_set, [], 20)
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
def waiting(sites: Pair) -> Iterator[Waiting]:
    site = Waiting(sites.b)
    yield site
    site.stop()


def test_a_call_is_answered_by_a_site_that_waits(sites: Pair, waiting: Waiting) -> None:
    later = Clock({"envs": Count(8)})
    call = served(sites, lambda method, arguments, clock: ((method, sum(arguments)), later))
    waiting.start()
    for i in range(20):
        value, clock = call("add", i, np.int64(1), deadline_s=10)
        assert value == ("add", i + 1)
        assert clock.counts == later.counts
    assert waiting.error is None


def test_a_failed_call_tells_the_caller_and_stops_the_server(sites: Pair, waiting: Waiting) -> None:
    def serve(method: str, arguments: tuple[Any, ...], clock: Clock) -> tuple[Any, Clock]:
        raise ValueError("no such action")

    call = served(sites, serve)
    call._requests.send(("step", 3))
    sites.a.flush()
    waiting.start()
    assert str(waiting.ended()) == "no such action"
    with pytest.raises(CallFailed, match="site 'b', step: ValueError: no such action"):
        call.answer("step", 10)


def test_a_call_that_nobody_answers_ends_at_its_deadline(sites: Pair) -> None:
    call = served(sites, lambda *request: (None, START))
    with pytest.raises(Late, match="lane 'answers' with site 'b'"):
        call("step", deadline_s=0.1)


def test_a_service_begins_no_second_call_while_it_waits() -> None:
    threads: Threads = {}
    names = ("front", "middle", "end")
    mailboxes = {name: Mailbox(name, threads=threads) for name in names}
    for name, mailbox in mailboxes.items():
        for peer in names:
            if peer != name:
                mailbox.meet(peer, f"thread:{peer}")
    front, middle, end = (Exchange(mailboxes[name]) for name in names)
    to_middle = front.sender("q", "middle")
    requests, answers = middle.receiver("q", "front"), middle.sender("r", "front")
    from_middle = front.receiver("r", "middle")
    call_end = Caller(middle, middle.sender("q2", "end"), middle.receiver("r2", "end"))
    at_end, back = end.receiver("q2", "middle"), end.sender("r2", "middle")
    depth, deepest = [0], [0]

    def serve(method: str, arguments: tuple[Any, ...], clock: Clock) -> tuple[Any, Clock]:
        depth[0] += 1
        deepest[0] = max(deepest[0], depth[0])
        answer = call_end(method, deadline_s=10)
        depth[0] -= 1
        return answer

    Desk(middle, requests, answers, serve)
    Desk(end, at_end, back, lambda method, arguments, clock: (method.upper(), clock))
    for word in ("a", "b", "c"):
        to_middle.send((word,))
    done = threading.Event()
    thread = threading.Thread(target=lambda: end.wait_until(done.is_set, [], 20))
    thread.start()
    middle.wait_until(lambda: answers.statistics().tokens == 3, [], 10)
    done.set()
    thread.join(10)
    front.drain()
    assert [from_middle.take()[0] for _ in range(3)] == [(True, "A"), (True, "B"), (True, "C")]
    assert deepest == [1]
    for exchange in (front, middle, end):
        exchange.close()


def test_a_caller_that_is_gone_needs_no_answer(sites: Pair) -> None:
    call = served(sites, lambda *request: ("answer", START))
    call._requests.send(("step",))
    call._answers.close()
    sites.until(lambda: sites.b._senders["answers"].over)
    sites.until(lambda: sites.b._receivers["requests"].statistics().tokens in (0, 1))


def test_a_wait_for_a_dead_service_ends(sites: Pair) -> None:
    call = served(sites, lambda *request: (None, START))
    sites.a._alive = lambda peer: "it was killed"
    with pytest.raises(PeerLost, match="site 'b' is lost: it was killed"):
        call("step", deadline_s=10)
