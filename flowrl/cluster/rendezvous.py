"""Where a run and its hosts meet: the address at which the run listens, their key, and what starts the hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.core.config import PartSpec
from flowrl.core.errors import UsageError
from flowrl.graph.host_offers import HostOffer
from flowrl.graph.launch import launcher_label, load_launch
from flowrl.machine.network_address import Address, parse_address

if TYPE_CHECKING:
    from flowrl.channels.keys import Keys

ANYWHERE = "tcp://*:*"  # at all addresses of this machine, at a free port
HOSTS_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a run listens for hosts, how many it needs, how long it waits for them, and what starts them.

    `launch` is a YAML file, a launcher's type, or a launcher as YAML or plain data, as in a graph's section `launch`.
    Without it, and without launchers of the graph, people start the hosts. Without `hosts`, the run needs all that are
    launched, or one.
    """

    listen: str | None = None  # tcp://ADDRESS:PORT; by default anywhere, if hosts are launched
    key: Path | None = None  # without one, a run that launches hosts makes one
    hosts: int | None = None
    within_s: float = HOSTS_WITHIN_S
    launch: Any = ()

    def listen_address(self) -> Address:
        return address_with_key(self.listen or ANYWHERE, self.key is not None, "--listen")

    def given_options(self) -> list[str]:
        """The options of the command line that stand for what was given."""
        given = {
            "--listen": self.listen,
            "--launch": self.launch or None,
            "--key": self.key,
            "--hosts": self.hosts,
        }
        return [option for option, value in given.items() if value is not None] or [
            "--hosts-within"
        ]

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
            what = ", ".join(given.given_options())
            raise UsageError(
                f"{what}: the placement puts nothing on a host; name one in --placement"
            )
        return None  # the launchers of a graph are for placements with hosts
    rendezvous = given or Rendezvous()
    launch = rendezvous.launchers() if rendezvous.launch else of_graph
    if not launch and rendezvous.listen is None:
        raise UsageError(
            f"placement: {', '.join(map(repr, places))} must be hosts; give --launch FILE, which says how they are "
            "started, or --listen tcp://ADDRESS:PORT --key FILE, and run 'flowrl host --join …' there"
        )
    rendezvous = replace(rendezvous, launch=launch)
    if rendezvous.key is not None or not launch:  # otherwise the run makes a key
        rendezvous.listen_address()
        rendezvous.keys()
    if rendezvous.listen is None:
        _check_launched_places(places, launch)
    return rendezvous


def _check_launched_places(places: list[str], launch: tuple[PartSpec, ...]) -> None:
    """Refuse a place that no launched host can be, where nobody knows how other hosts could join."""
    labels = {launcher_label(spec): int(spec.make().host_count) for spec in launch}
    offers = [HostOffer(f"{label}-{n}", (label,)) for label in labels for n in range(labels[label])]
    for place in places:
        if not any(offer.matches(place) for offer in offers):
            names = ", ".join(f"'{label}-*'" for label in labels)
            raise UsageError(
                f"placement: no launched host can be '{place}'; name one of {names}, or give --listen "
                "if other hosts join"
            )
