"""Where a run and its hosts meet: the address at which the run listens, their key, and what starts the hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.core.config import PartSpec
from flowrl.core.errors import UsageError
from flowrl.graph.launch import load_launch
from flowrl.machine.network_address import Address, parse_address

if TYPE_CHECKING:
    from flowrl.channels.keys import Keys

ANYWHERE = "tcp://*:*"  # at all addresses of this machine, at a free port


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a run listens for hosts, how many it needs, how long it waits for them, and what starts them.

    `launch` is a YAML file, a launcher's type, or a launcher as YAML or plain data, as in a graph's section `launch`.
    Without it, people start the hosts. Without `hosts`, the run needs all that are launched, or one.
    """

    listen: str = ANYWHERE  # tcp://ADDRESS:PORT
    key: Path | None = None  # without one, a run that launches hosts makes one
    hosts: int | None = None
    within_s: float = 60.0
    launch: Any = ()

    def listen_address(self) -> Address:
        return address_with_key(self.listen, self.key is not None, "--listen")

    def keys(self) -> Keys | None:
        return read_optional_key(self.key)

    def launchers(self) -> tuple[PartSpec, ...]:
        """What starts the hosts."""
        if isinstance(self.launch, tuple) and all(isinstance(s, PartSpec) for s in self.launch):
            return self.launch
        return load_launch(self.launch)


def address_with_key(text: str, has_key: bool, option: str) -> Address:
    """Parse an address. Without a key only a loopback address is allowed, which no other machine can reach."""
    from flowrl.channels.keys import HOW_TO_MAKE  # imported late, as it loads ZeroMQ

    address = parse_address(text, option)
    if not has_key and not address.is_loopback:
        raise UsageError(
            f"{option} {text}: others can reach this address, so it needs --key FILE; {HOW_TO_MAKE}"
        )
    return address


def read_optional_key(path: Path | None) -> Keys | None:
    from flowrl.channels.keys import read_key

    return None if path is None else read_key(path)


def settled_rendezvous(
    places: list[str], given: Rendezvous | None, of_graph: tuple[PartSpec, ...]
) -> Rendezvous | None:
    """Return where the hosts of a placement join, with the launchers of the graph unless others are given.

    A placement on hosts without a rendezvous is refused, as are a rendezvous without hosts, and an invalid one.
    """
    if not places:
        if given is not None:
            what = "--launch" if given.launch else "--listen"
            raise UsageError(
                f"{what}: the placement puts nothing on a host; name one in --placement"
            )
        return None  # the launchers of a graph are for placements with hosts
    if given is None and not of_graph:
        raise UsageError(
            f"placement: {', '.join(map(repr, places))} must be hosts; give --launch FILE, which says how they are "
            "started, or --listen tcp://ADDRESS:PORT --key FILE, and run 'flowrl host --join …' there"
        )
    rendezvous = given or Rendezvous()
    launch = rendezvous.launchers() if rendezvous.launch else of_graph
    rendezvous = replace(rendezvous, launch=launch)
    if rendezvous.key is not None or not launch:  # otherwise the run makes a key
        rendezvous.listen_address()
        rendezvous.keys()
    return rendezvous
