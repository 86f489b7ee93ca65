"""The beacon of a site process goes on after an error, and gives signs of life."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from flowrl.channels.site_connections import SiteConnections
from flowrl.runtime.sites import status_beacon
from flowrl.runtime.sites.site import SiteScheduler
from flowrl.runtime.sites.status_beacon import SIGN_OF_LIFE, StatusBeacon
from flowrl.runtime.status import Activity, SiteStatus


class SentTexts:
    """Connections that remember what is sent, until enough was sent."""

    def __init__(self, enough: int) -> None:
        self.texts: list[str] = []
        self.is_enough = threading.Event()
        self._enough = enough

    def connect(self, peer: str, address: str) -> None: ...

    def send_out_of_band(self, peer: str, text: str) -> None:
        self.texts.append(text)
        if len(self.texts) == self._enough:
            self.is_enough.set()

    def flush(self) -> None: ...

    def close(self, drop: bool) -> None: ...


class NamedScheduler:
    name = "a"


def texts_of(monkeypatch: pytest.MonkeyPatch, *readings: SiteStatus | Exception) -> list[str]:
    """What the beacon sends while it reads these statuses; an exception is raised instead."""
    remaining = [*readings]

    def read(scheduler: Any, site: str) -> SiteStatus:
        reading = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if isinstance(reading, Exception):
            raise reading
        return reading

    monkeypatch.setattr(status_beacon, "read_status", read)
    monkeypatch.setattr(status_beacon, "PERIOD_S", 0.001)
    monkeypatch.setattr(status_beacon, "ALIVE_S", 0.0)
    sent = SentTexts(len(readings))
    beacon = StatusBeacon(cast(SiteConnections, sent), "inproc://coordinator")
    beacon.start(cast(SiteScheduler, NamedScheduler()))
    assert sent.is_enough.wait(60)
    beacon.close()
    return sent.texts[: len(readings)]


LONG, SHORT = (SiteStatus("a", Activity("firing", for_s)) for for_s in (9.0, 0.1))


def test_an_error_while_the_status_is_read_does_not_end_the_beacon(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    race = RuntimeError("dictionary changed size during iteration")
    texts = texts_of(monkeypatch, race, race, LONG)
    assert texts[:2] == [SIGN_OF_LIFE] * 2
    assert '"site": "a"' in texts[2]
    errors = capsys.readouterr().err
    assert errors.startswith("site 'a': the status could not be read, and will be read again\n")
    assert errors.count("dictionary changed size") == 1


def test_a_site_with_short_firings_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    assert texts_of(monkeypatch, SHORT, SHORT) == [SIGN_OF_LIFE] * 2
