"""Network addresses in the form `tcp://host:port`, and which processes share a machine's connection to the network."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from flowrl.core.errors import UsageError

_TCP_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:.%]+\]|[^:/\s\[\]]+):(\d{1,5}|\*)")
ANY_MACHINE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Address:
    """The numeric address of a machine, and a port (`*`: any free port)."""

    machine: str
    port: str

    @property
    def is_loopback(self) -> bool:
        return ip_address(self.machine.partition("%")[0]).is_loopback

    def __str__(self) -> str:
        return tcp_url(self.machine, self.port)


def tcp_url(machine: str, port: int | str) -> str:
    """Return `tcp://machine:port`, with brackets around an IPv6 address."""
    return f"tcp://[{machine}]:{port}" if ":" in machine else f"tcp://{machine}:{port}"


def parse_address(text: str, option: str) -> Address:
    """Parse an address and resolve its host name. Errors name `option`."""
    found = _TCP_ADDRESS.fullmatch(text.strip())
    if found is None or (found[2] != "*" and int(found[2]) > 65535):
        raise UsageError(
            f"{option} {text}: expected tcp://ADDRESS:PORT, such as tcp://10.0.0.1:5555"
        )
    machine = found[1].strip("[]")
    return Address(
        ANY_MACHINE if machine == "*" else resolve_machine(machine, f"{option} {text}"), found[2]
    )


def resolve_machine(machine: str, where: str) -> str:
    """Return the numeric address of a machine's name."""
    try:
        return str(socket.getaddrinfo(machine, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        raise UsageError(f"{where}: the host name '{machine}' cannot be resolved") from None


def local_address_towards(remote: Address) -> str:
    """Return the address of this machine from which a connection to `remote` would come."""
    family = socket.AF_INET6 if ":" in remote.machine else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((remote.machine, int(remote.port)))
        except OSError as error:
            raise UsageError(
                f"{remote}: cannot be reached from this machine: {error.strerror}"
            ) from None
        return str(probe.getsockname()[0])


def machine_id() -> str:
    """Return what only processes have in common that share a network link: the boot of their system, and its namespace.

    Containers with networks of their own differ. It is empty where the system does not tell it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


def is_connectable(machine: str) -> bool:
    """Return whether this is a numeric address that other machines can connect to."""
    try:
        return not ip_address(machine.partition("%")[0]).is_unspecified
    except ValueError:
        return False


def open_listener(machine: str) -> tuple[socket.socket, int]:
    """Return a socket that listens at a free port, and that port."""
    family = socket.AF_INET6 if ":" in machine else socket.AF_INET
    try:
        listener = socket.create_server((machine, 0), family=family, backlog=1024)
    except OSError as error:
        raise UsageError(f"{machine}: cannot listen at this address: {error.strerror}") from None
    return listener, int(listener.getsockname()[1])
