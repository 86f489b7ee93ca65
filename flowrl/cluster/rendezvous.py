"""How a run and its hosts are to meet, as whoever starts the run says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowrl.core.errors import UsageError, closest
from flowrl.graph.placement import HERE


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a run meets its hosts, how many there must be, and how long it waits for them."""

    listen: str  # tcp://ADDRESS:PORT
    key: Path | None = None
    hosts: int = 1
    within_s: float = 60.0


def check_meeting(places: list[str], meeting: Meeting | None) -> None:
    """Whoever places nodes on hosts says where these join, and the other way round."""
    if places and meeting is None:
        near = closest(places[0], HERE)
        raise UsageError(
            f"placement: {', '.join(map(repr, places))} must be hosts; "
            + (f"did you mean '{near}'? For hosts, give " if near else "give ")
            + "--listen tcp://ADDRESS:PORT --key FILE, and run 'flowrl host --join …' there"
        )
    if meeting is not None and not places:
        raise UsageError("--listen: the placement puts nothing on a host; name one in --placement")
    if meeting is not None:
        from flowrl.cluster.control_socket import (  # only now: they load ZeroMQ
            address_with_key,
            key_of,
        )

        address_with_key(meeting.listen, meeting.key, "--listen")
        key_of(meeting.key)
