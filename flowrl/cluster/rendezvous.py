"""Where a run and its hosts meet: the address at which the run listens, and the key that both have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flowrl.core.errors import UsageError
from flowrl.machine.network_address import Address, parse_address

if TYPE_CHECKING:
    from flowrl.channels.keys import Keys


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a run listens for hosts, how many it needs, and how long it waits for them."""

    listen: str  # tcp://ADDRESS:PORT
    key: Path | None = None
    hosts: int = 1
    within_s: float = 60.0

    def listen_address(self) -> Address:
        return address_with_key(self.listen, self.key, "--listen")

    def keys(self) -> Keys | None:
        return read_optional_key(self.key)


def address_with_key(text: str, key: Path | None, option: str) -> Address:
    """Parse an address. Without a key only a loopback address is allowed, which no other machine can reach."""
    from flowrl.channels.keys import HOW_TO_MAKE  # imported late, as it loads ZeroMQ

    address = parse_address(text, option)
    if key is None and not address.is_loopback:
        raise UsageError(
            f"{option} {text}: others can reach this address, so it needs --key FILE; {HOW_TO_MAKE}"
        )
    return address


def read_optional_key(path: Path | None) -> Keys | None:
    from flowrl.channels.keys import read_key

    return None if path is None else read_key(path)


def check_rendezvous(places: list[str], rendezvous: Rendezvous | None) -> None:
    """Refuse a placement on hosts without a rendezvous, a rendezvous without hosts, and an invalid rendezvous."""
    if places and rendezvous is None:
        raise UsageError(
            f"placement: {', '.join(map(repr, places))} must be hosts; give "
            "--listen tcp://ADDRESS:PORT --key FILE, and run 'flowrl host --join …' there"
        )
    if rendezvous is not None and not places:
        raise UsageError("--listen: the placement puts nothing on a host; name one in --placement")
    if rendezvous is not None:
        rendezvous.listen_address()
        rendezvous.keys()
