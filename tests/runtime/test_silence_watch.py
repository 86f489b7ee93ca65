"""A site that is silent is warned of, and ends the run after a deadline; a stopped coordinator blames nobody."""

from __future__ import annotations

import pytest

from flowrl.runtime.sites.silence_watch import END_S, WARN_S, SilenceWatch
from flowrl.runtime.sites.site_failures import SiteLost


class Fixture:
    """A watch of sites a and b, under a clock of the test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.shown: list[str] = []
        self.watch = SilenceWatch("ab", self.shown.append, lambda: self.now_s)

    def pass_time(self, seconds: float, heard: str = "") -> None:
        """Check each second; `heard` are the sites that report meanwhile."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            for site in heard:
                self.watch.on_sign_of_life(site)
            self.watch.check()


def test_a_silent_site_is_warned_of_once_and_named() -> None:
    fixture = Fixture()
    fixture.pass_time(WARN_S - 1, heard="a")
    assert fixture.shown == []
    fixture.pass_time(20, heard="a")
    [line] = fixture.shown
    assert line.startswith("site 'b': nothing was heard of it for 30 s; its process is stopped")
    assert line.endswith("after 300 s the run ends")


def test_a_site_that_stays_silent_ends_the_run() -> None:
    fixture = Fixture()
    with pytest.raises(SiteLost, match=r"site 'b': nothing was heard of it for 300 s"):
        fixture.pass_time(END_S + 1, heard="a")


def test_a_site_that_speaks_again_is_in_the_summary() -> None:
    fixture = Fixture()
    fixture.pass_time(47, heard="a")
    fixture.pass_time(END_S, heard="ab")
    assert fixture.watch.lines() == ["site 'b' was silent for 47 s"]


def test_a_coordinator_that_was_stopped_itself_blames_nobody() -> None:
    fixture = Fixture()
    fixture.now_s += 1000.0  # Ctrl-Z, and some minutes later `fg`
    fixture.watch.check()
    fixture.pass_time(5, heard="ab")
    assert fixture.shown == []
