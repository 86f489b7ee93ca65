"""Network addresses as people write them: `tcp://host:port`."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from flowrl.core.errors import UsageError

_FORM = re.compile(r"tcp://(\[[0-9a-fA-F:.%]+\]|[^:/\s\[\]]+):(\d{1,5}|\*)")
ANY = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Address:
    """A machine (numeric) and a port (`*`: any that is free)."""

    machine: str
    port: str

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ip_address(self.machine.partition("%")[0]).is_loopback

    @property
    def is_any(self) -> bool:
        """Whether it means all of this machine's addresses."""
        return ip_address(self.machine.partition("%")[0]).is_unspecified

    def __str__(self) -> str:
        return tcp(self.machine, self.port)


def tcp(machine: str, port: int | str) -> str:
    """`tcp://machine:port`, whichever kind of address it is."""
    return f"tcp://[{machine}]:{port}" if ":" in machine else f"tcp://{machine}:{port}"


def address_of(text: str, option: str) -> Address:
    """A written address, with its name looked up."""
    found = _FORM.fullmatch(text.strip())
    if found is None or (found[2] != "*" and int(found[2]) > 65535):
        raise UsageError(
            f"{option} {text}: expected tcp://ADDRESS:PORT, such as tcp://10.0.0.1:5555"
        )
    machine = found[1].strip("[]")
    return Address(ANY if machine == "*" else numeric(machine, f"{option} {text}"), found[2])


def numeric(machine: str, where: str) -> str:
    """The number of a machine's name."""
    try:
        return str(socket.getaddrinfo(machine, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        raise UsageError(f"{where}: there is no machine '{machine}' that this one knows") from None


def own_address(of: Address) -> str:
    """The address of this machine on the way to another."""
    family = socket.AF_INET6 if ":" in of.machine else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # nothing is sent
        try:
            probe.connect((of.machine, int(of.port)))
        except OSError as error:
            raise UsageError(f"{of}: cannot be reached from here: {error.strerror}") from None
        return str(probe.getsockname()[0])


def is_number(machine: str) -> bool:
    """Whether it is the number of a machine that others can connect to."""
    try:
        return not ip_address(machine.partition("%")[0]).is_unspecified
    except ValueError:
        return False


def listening(machine: str) -> tuple[socket.socket, int]:
    """A socket at which somebody is awaited from now on, and its port."""
    family = socket.AF_INET6 if ":" in machine else socket.AF_INET
    try:
        door = socket.create_server((machine, 0), family=family, backlog=1024)
    except OSError as error:
        raise UsageError(f"{machine}: cannot listen there: {error.strerror}") from None
    return door, int(door.getsockname()[1])
