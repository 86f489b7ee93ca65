"""Control messages between a run and a host: whatever is not the next message of its session is refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from flowrl.channels.errors import RefusedMessage, UnsendableValue
from flowrl.cluster import messages
from flowrl.cluster.messages import (
    Heartbeat,
    HostMessage,
    ListenFor,
    SiteEnded,
    SiteOutput,
    host_session,
    run_session,
    unpack,
)

SESSION = b"sixteen bytes ok"
BEAT = {"type": "Heartbeat"}


def refused(session: Any, data: bytes) -> str:
    with pytest.raises(RefusedMessage) as error:
        session.read(data)
    return error.value.reason


def test_messages_arrive_in_order() -> None:
    host, run = host_session(SESSION), run_session(SESSION)
    sent: list[HostMessage] = [Heartbeat(), SiteOutput("a line"), SiteEnded("x", "why")]
    assert [run.read(host.pack(message)) for message in sent] == sent
    listen = ListenFor(("x", "y"))
    assert host.read(run.pack(listen)) == listen


def test_a_message_that_comes_twice_is_refused_and_the_next_is_not() -> None:
    host, run = host_session(SESSION), run_session(SESSION)
    first, second = host.pack(Heartbeat()), host.pack(Heartbeat())
    run.read(first)
    assert refused(run, first) == "replayed"
    assert run.read(second) == Heartbeat()


def test_a_message_that_is_early_is_refused() -> None:
    host, run = host_session(SESSION), run_session(SESSION)
    host.pack(Heartbeat())
    assert refused(run, host.pack(Heartbeat())) == "out of order"


def test_another_session_is_refused() -> None:
    data = host_session(b"another session!").pack(Heartbeat())
    assert refused(run_session(SESSION), data) == "another session"


def test_a_message_of_the_other_direction_is_refused() -> None:
    assert refused(run_session(SESSION), run_session(SESSION).pack(ListenFor(()))) == "malformed"


@pytest.mark.parametrize(
    "items",
    [
        [SESSION, 0, {"type": "Dance"}],
        [SESSION, 0, {"type": 7}],
        [SESSION, 0, 7],
        [SESSION, 0, {"type": "SiteOutput", "text": 7}],
        [SESSION, 0, {"type": "SiteOutput"}],
        [SESSION, 0, {**BEAT, "more": 1}],
        [SESSION, True, BEAT],
        [SESSION, "0", BEAT],
        [b"short", 0, BEAT],
        ["text is no session", 0, BEAT],
        [SESSION, 0],
        {},
        7,
    ],
)
def test_what_has_another_form_is_refused(items: Any) -> None:
    assert refused(run_session(SESSION), msgpack.packb(items)) == "malformed"


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93", b"\x91" * 100_000, msgpack.packb(msgpack.ExtType(1, b"x"))]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedMessage, match="malformed"):
        unpack(data)


def test_what_is_too_large_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    long = SiteOutput("x" * 2000)
    data = host_session(SESSION).pack(long)
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 1000)
    run = run_session(SESSION)
    assert refused(run, data) == "oversized"
    host = host_session(SESSION)
    with pytest.raises(UnsendableValue, match="SiteOutput has 2045 bytes; at most 1000 are sent"):
        host.pack(long)
    assert run.read(host.pack(Heartbeat())) == Heartbeat()
