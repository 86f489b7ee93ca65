"""Which version of a state a reader on another site sees, and which it waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from flowrl.core.state import EMPTY_CLOCK, State
from flowrl.runtime.instance import SiteState
from flowrl.runtime.remote.state_views import RoundEndView


class Never(Exception):
    """Raised in the place of a wait without end."""


class Mail:
    """An arriving queue, and the site's mail."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self.channels = self
        self.served: list[Callable[[], None]] = []

    def serve(self, work: Callable[[], None]) -> None:
        self.served.append(work)

    def brings(self, *states: State | None) -> None:
        self.queue.extend((state, EMPTY_CLOCK) for state in states)
        for work in self.served:
            work()

    def __len__(self) -> int:
        return len(self.queue)

    def popleft(self) -> Any:
        return self.queue.popleft()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        if not condition():
            raise Never


def version(number: int) -> State:
    return State({}, {}, version=number)


def reader(lag: int) -> tuple[RoundEndView, SiteState, Mail]:
    site, mail = SiteState(), Mail()
    return RoundEndView(mail, site, mail, lag), site, mail  # type: ignore[arg-type]


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_reader_sees_the_end_of_the_round_that_its_lag_says(lag: int) -> None:
    ends, site, mail = reader(lag)
    mail.brings(version(0))
    for rounds in range(8):
        site.rounds = rounds
        for _ in range(2):  # in all its firings of a round
            assert ends.take()[0].version == max(rounds - lag, 0)
        mail.brings(version(rounds + 1))


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_a_lag_is_room_to_go_ahead(lag: int) -> None:
    """What a round does not see it does not wait for: so reader and source work at the same time."""
    ends, site, mail = reader(lag)
    mail.brings(version(0))
    for rounds in range(lag + 1):
        site.rounds = rounds
        assert ends.take()[0].version == 0
    site.rounds = lag + 1
    with pytest.raises(Never):
        ends.take()
    mail.brings(version(1))
    assert ends.take()[0].version == 1


def test_a_round_that_changed_nothing_ends_with_the_version_before() -> None:
    ends, site, mail = reader(1)
    mail.brings(version(0), None, version(2), None)
    seen = []
    for rounds in range(5):
        site.rounds = rounds
        seen.append(ends.take()[0].version)
    assert seen == [0, 0, 0, 2, 2]


def test_versions_that_nobody_will_see_are_not_kept() -> None:
    """A reader that does not fire for long takes in what comes, and keeps what it may still see."""
    ends, site, mail = reader(2)
    mail.brings(version(0))
    for rounds in range(50):
        site.rounds = rounds
        mail.brings(version(rounds + 1))
        assert len(ends._ends) <= 3
    assert ends.take()[0].version == 47
