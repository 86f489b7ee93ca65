"""The coordinator's ends of its control channels: it sends commands to sites, and receives reports and failures.

`control.site_control` has the ends of a site.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from flowrl.channels import Receiver, Sender, SiteChannels
from flowrl.core.plain_data import DataCodec, MalformedDataError
from flowrl.runtime.control.messages import (
    COMMAND,
    COMMANDS,
    CONTROL_LIMITS,
    FAILURE,
    FAILURES,
    REPORT,
    REPORTS,
    Command,
    Failure,
    Report,
)
from flowrl.runtime.sites.site_failures import SiteLost

T = TypeVar("T")


class ControlChannels:
    """The control channels with all sites of a run."""

    def __init__(self, channels: SiteChannels) -> None:
        self._channels = channels
        self._reports: dict[str, Receiver] = {}
        self._failures: dict[str, Receiver] = {}
        self._commands: dict[str, Sender] = {}

    def open(self, site: str) -> None:
        """Open the channels with a site."""
        channels, limits = self._channels, CONTROL_LIMITS
        self._reports[site] = channels.open_receiver(f"{REPORTS}:{site}", site, limits=limits)
        self._failures[site] = channels.open_receiver(f"{FAILURES}:{site}", site, limits=limits)
        self._commands[site] = channels.open_sender(f"{COMMANDS}:{site}", site, limits=limits)

    def send(self, command: Command, sites: Iterable[str]) -> None:
        """Send a command to these sites."""
        for site in sites:
            self._commands[site].send(COMMAND.encode(command))
        self._channels.flush()

    def can_send(self, site: str) -> bool:
        """Return whether the channels with a site are open, and have room for a command."""
        return site in self._commands and self._commands[site].is_ready()

    def take_reports(self) -> Iterator[tuple[str, Report]]:
        """Take the reports that have arrived, each with its site."""
        return _arrived(self._reports, REPORT)

    @property
    def has_failures(self) -> bool:
        """Whether a failure has arrived."""
        return any(map(len, self._failures.values()))

    def take_failures(self) -> Iterator[tuple[str, Failure]]:
        """Take the failures that have arrived, each with its site."""
        return _arrived(self._failures, FAILURE)


def _arrived(receivers: dict[str, Receiver], codec: DataCodec[T]) -> Iterator[tuple[str, T]]:
    for site, receiver in receivers.items():
        while len(receiver):
            yield site, _decoded(site, codec, receiver)


def _decoded(site: str, codec: DataCodec[T], receiver: Receiver) -> T:
    try:
        return codec.decode(receiver.take()[0])
    except MalformedDataError as error:
        raise SiteLost(f"site '{site}' sent a malformed message: {error}") from error
