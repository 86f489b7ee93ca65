"""What can be done to the sites of a run on purpose, to see how the run gets over it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SiteSignal:
    """The process of a site gets a signal, such as SIGKILL."""

    site: str
    number: int


@dataclass(frozen=True, slots=True)
class HostSilence:
    """A host stops for some seconds, as if its network was cut: nothing is heard of it and of its sites."""

    host: str
    seconds: float


Disturbance = SiteSignal | HostSilence
