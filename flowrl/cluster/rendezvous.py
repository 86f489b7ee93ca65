"""How a run and its hosts are to meet, as whoever starts the run says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowrl.core.errors import UsageError, closest_word
from flowrl.graph.placement import LOCAL_PLACES


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where a run meets its hosts, how many there must be, and how long it waits for them."""

    listen: str  # tcp://ADDRESS:PORT
    key: Path | None = None
    hosts: int = 1
    within_s: float = 60.0


def check_rendezvous(places: list[str], rendezvous: Rendezvous | None) -> None:
    """Whoever places nodes on hosts says where these join, and the other way round."""
    if places and rendezvous is None:
        near = closest_word(places[0], LOCAL_PLACES)
        raise UsageError(
            f"placement: {', '.join(map(repr, places))} must be hosts; "
            + (f"did you mean '{near}'? For hosts, give " if near else "give ")
            + "--listen tcp://ADDRESS:PORT --key FILE, and run 'flowrl host --join …' there"
        )
    if rendezvous is not None and not places:
        raise UsageError("--listen: the placement puts nothing on a host; name one in --placement")
    if rendezvous is not None:
        from flowrl.cluster.control_socket import (  # only now: they load ZeroMQ
            address_with_key,
            key_of,
        )

        address_with_key(rendezvous.listen, rendezvous.key, "--listen")
        key_of(rendezvous.key)
