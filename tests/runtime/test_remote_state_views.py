"""Views of remote states: the version that a consumer reads, and the version for which it waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from flowrl.core.state import EMPTY_CLOCK, State
from flowrl.runtime.remote.state_views import RoundEndView
from flowrl.runtime.site_state import SiteState


class WouldWait(Exception):
    """Raised instead of a wait that would never end."""


class FakeInput:
    """Stands in for the input queue, the waits and the channels of a site."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self.channels = self
        self.receivers: list[Callable[[], None]] = []

    def on_receive(self, receive: Callable[[], None]) -> None:
        self.receivers.append(receive)

    def deliver(self, *states: State | None) -> None:
        self.queue.extend((state, EMPTY_CLOCK) for state in states)
        for receive in self.receivers:
            receive()

    def __len__(self) -> int:
        return len(self.queue)

    def popleft(self) -> Any:
        return self.queue.popleft()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        if not condition():
            raise WouldWait


def version(number: int) -> State:
    return State({}, {}, version=number)


def view_with_lag(lag: int) -> tuple[RoundEndView, SiteState, FakeInput]:
    site, queue = SiteState(), FakeInput()
    return RoundEndView(queue, site, queue, lag), site, queue  # type: ignore[arg-type]


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_view_reads_the_version_that_its_lag_determines(lag: int) -> None:
    view, site, queue = view_with_lag(lag)
    queue.deliver(version(0))
    for rounds in range(8):
        site.rounds = rounds
        for _ in range(2):  # the same in all firings of a round
            assert view.take()[0].version == max(rounds - lag, 0)
        queue.deliver(version(rounds + 1))


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_a_view_with_a_lag_does_not_wait_for_the_latest_rounds(lag: int) -> None:
    """So the consumer and the learner work at the same time."""
    view, site, queue = view_with_lag(lag)
    queue.deliver(version(0))
    for rounds in range(lag + 1):
        site.rounds = rounds
        assert view.take()[0].version == 0
    site.rounds = lag + 1
    with pytest.raises(WouldWait):
        view.take()
    queue.deliver(version(1))
    assert view.take()[0].version == 1


def test_a_round_without_a_new_version_ends_with_the_one_before() -> None:
    view, site, queue = view_with_lag(1)
    queue.deliver(version(0), None, version(2), None)
    seen = []
    for rounds in range(5):
        site.rounds = rounds
        seen.append(view.take()[0].version)
    assert seen == [0, 0, 0, 2, 2]


def test_versions_that_no_round_will_read_are_not_kept() -> None:
    """A consumer that does not fire for many rounds still takes versions in, and keeps those that it may read."""
    view, site, queue = view_with_lag(2)
    queue.deliver(version(0))
    for rounds in range(50):
        site.rounds = rounds
        queue.deliver(version(rounds + 1))
        assert len(view._versions) <= 3
    assert view.take()[0].version == 47
