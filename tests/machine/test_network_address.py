"""Network addresses: parsing, loopback, listening."""

from __future__ import annotations

import socket

import pytest

from flowrl.core.errors import UsageError
from flowrl.machine.network_address import (
    Address,
    local_address_towards,
    open_listener,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.0.0.1:5555", Address("10.0.0.1", "5555")),
        ("tcp://127.0.0.1:*", Address("127.0.0.1", "*")),
        ("tcp://*:5555", Address("0.0.0.0", "5555")),
        ("tcp://[::1]:5555", Address("::1", "5555")),
    ],
)
def test_an_address_is_a_machine_and_a_port(text: str, address: Address) -> None:
    assert parse_address(text, "--listen") == address
    assert str(address).startswith("tcp://")


@pytest.mark.parametrize(
    "text",
    ["10.0.0.1:5555", "tcp://10.0.0.1", "ipc:///x", "tcp://a:b", "tcp://h:70000", "tcp://:1"],
)
def test_an_invalid_address_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match=r"--join .*: expected tcp://ADDRESS:PORT, such as"):
        parse_address(text, "--join")


def test_an_unknown_host_name_is_reported() -> None:
    with pytest.raises(UsageError, match=r"--join tcp://no\.such\.invalid:1: the host name 'no"):
        parse_address("tcp://no.such.invalid:1", "--join")


def test_loopback_addresses_are_recognised() -> None:
    assert Address("127.3.2.1", "1").is_loopback
    assert Address("::1", "1").is_loopback
    assert not Address("10.0.0.1", "1").is_loopback
    assert not Address("0.0.0.0", "1").is_loopback


def test_the_local_address_towards_the_loopback_is_the_loopback() -> None:
    assert local_address_towards(Address("127.0.0.1", "9")) == "127.0.0.1"


def test_a_listener_accepts_connections_later() -> None:
    door, port = open_listener("127.0.0.1")
    with door, socket.create_connection(("127.0.0.1", port), timeout=5) as early:
        early.sendall(b"x")
        with door.accept()[0] as there:
            assert there.recv(1) == b"x"


def test_listening_at_an_address_of_another_machine_fails() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1: cannot listen at this address"):
        open_listener("192.0.2.1")
