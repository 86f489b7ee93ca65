"""Words between a run and a host: what is not the next word of its session is refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from flowrl.channels.errors import RefusedMessage, UnsendableValue
from flowrl.cluster import control
from flowrl.cluster.control import ControlConnection, read

SESSION = b"sixteen bytes ok"


def refused(line: ControlConnection, data: bytes) -> str:
    with pytest.raises(RefusedMessage) as error:
        line.read(data)
    return error.value.reason


def test_words_arrive_in_order() -> None:
    here, there = ControlConnection(SESSION), ControlConnection(SESSION)
    said: list[tuple[str, list[Any]]] = [
        ("beat", []),
        ("said", ["a line"]),
        ("ended", ["x", "why"]),
    ]
    assert [there.read(here.pack(word, *values)) for word, values in said] == said


def test_a_word_that_comes_twice_is_refused_and_the_next_is_not() -> None:
    here, there = ControlConnection(SESSION), ControlConnection(SESSION)
    first, second = here.pack("beat"), here.pack("beat")
    there.read(first)
    assert refused(there, first) == "replayed"
    assert there.read(second) == ("beat", [])


def test_a_word_that_is_early_is_refused() -> None:
    here, there = ControlConnection(SESSION), ControlConnection(SESSION)
    here.pack("beat")
    assert refused(there, here.pack("beat")) == "out of order"


def test_another_session_is_refused() -> None:
    assert (
        refused(ControlConnection(SESSION), ControlConnection(b"another session!").pack("beat"))
        == "another session"
    )


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([SESSION, 0, "dance"], "unknown word"),
        ([SESSION, 0, 7], "unknown word"),
        ([SESSION, 0, "said", 7], "malformed"),
        ([SESSION, 0, "said"], "malformed"),
        ([SESSION, 0, "beat", "more"], "malformed"),
        ([SESSION, True, "beat"], "malformed"),
        ([SESSION, "0", "beat"], "malformed"),
        ([b"short", 0, "beat"], "malformed"),
        (["text is no session", 0, "beat"], "malformed"),
        ([SESSION, 0], "malformed"),
        ({}, "malformed"),
        (7, "malformed"),
    ],
)
def test_what_has_another_form_is_refused(items: Any, reason: str) -> None:
    assert refused(ControlConnection(SESSION), msgpack.packb(items)) == reason


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x93", b"\x91" * 100_000, msgpack.packb(msgpack.ExtType(1, b"x"))]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedMessage, match="malformed"):
        read(data)


def test_what_is_too_large_is_neither_said_nor_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    long = ControlConnection(SESSION).pack("said", "x" * 2000)
    monkeypatch.setattr(control, "LIMIT_BYTES", 1000)
    line = ControlConnection(SESSION)
    assert refused(line, long) == "oversized"
    with pytest.raises(UnsendableValue, match="control: 'said' has 2028 bytes; 1000 are allowed"):
        line.pack("said", "x" * 2000)
    assert line.read(ControlConnection(SESSION).pack("beat")) == ("beat", [])
