"""The queue of tokens that arrive from another site."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from flowrl.channels import InboxRegistry, SiteChannels, SiteConnections
from flowrl.core.state import EMPTY_CLOCK
from flowrl.runtime.remote.edges import RemoteInput
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.site_state import SiteState


class FakeReceiver(deque[Any]):
    """Stands in for the receiver of a channel."""

    def is_ready(self) -> bool:
        return len(self) > 0

    def take(self) -> Any:
        return self.popleft()


class TakingWaits:
    """Stands in for the waits of a site, which takes in all tokens that arrive in a wait."""

    def __init__(self) -> None:
        self.queue: RemoteInput

    def until(self, condition: Callable[[], bool], wait: None, receiver: FakeReceiver) -> None:
        receiver.append(("token", EMPTY_CLOCK))
        self.queue.empty_receiver()
        assert condition()


def test_a_token_that_is_taken_in_during_a_wait_ends_it() -> None:
    waits = TakingWaits()
    waits.queue = queue = RemoteInput(waits, FakeReceiver(), None)  # type: ignore[arg-type]
    queue.fill(1)
    assert queue.popleft() == ("token", EMPTY_CLOCK)
    assert queue.popleft() == ("token", EMPTY_CLOCK)
    assert not queue


def test_a_wait_for_a_channel_names_the_site_that_sends() -> None:
    """Its channel is empty, as it is when the wait is made."""
    inboxes: InboxRegistry = {}
    here, there = (SiteConnections(name, inboxes=inboxes) for name in ("here", "there"))
    here.connect("there", there.inproc_address)
    channels = SiteChannels(here)
    waits = SiteWaits(channels, SiteState())
    assert waits.on_input("c", "l -> c", channels.open_receiver("c#0", "there")).peer == "there"
    for connections in (here, there):
        connections.close(drop=True)
