"""Waits until enough hosts have joined a run, and says which are missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flowrl.cluster.host_admission import HostAdmission
from flowrl.cluster.joined_host import HostError
from flowrl.cluster.joined_hosts import POLL_S, JoinedHosts
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.core.wording import count_text, list_text
from flowrl.graph.host_offers import HostOffer


@dataclass(frozen=True, slots=True)
class _Gap:
    """What lacks of the hosts that a run needs."""

    joined: Sequence[HostOffer]
    needed: int
    open_places: Sequence[str]  # each of which means none of the joined hosts
    unmet_needs: str  # what nodes lack on the joined hosts

    @property
    def is_placeable(self) -> bool:
        """Whether the joined hosts suffice for all nodes."""
        return not self.open_places and not self.unmet_needs

    def __str__(self) -> str:
        if self.open_places:
            return f"none has joined for {', '.join(map(repr, self.open_places))}"
        return self.unmet_needs or f"{len(self.joined)} of {self.needed} have joined"

    def error_text(self, within: str) -> str:
        joined = list_text([offer.name for offer in self.joined])
        if self.open_places:
            names = ", ".join(map(repr, self.open_places))
            return f"a host for {names} has not joined {within} (joined: {joined})"
        if self.unmet_needs:
            return (
                f"no hosts have joined {within} that have what the nodes need: {self.unmet_needs}"
            )
        needed = count_text(self.needed, "host")
        return f"{len(self.joined):,} of {needed} have joined {within} (joined: {joined})"


class HostWait:
    """Waits for the hosts of a run: before its first firing, and after the loss of some of them."""

    def __init__(
        self,
        joined: JoinedHosts,
        admission: HostAdmission,
        launched: LaunchedHosts,
        needed: int,
        within_s: float,
        address: str,
    ) -> None:
        """`needed` hosts have to join at this address, `within_s` since launchers have got their machines."""
        self._joined, self._admission, self._launched = joined, admission, launched
        self.needed, self.within_s = needed, within_s
        self._address = address
        self._missing = ""  # which hosts are waited for; empty while none are
        self._have_been_enough = False  # once they were, a run that recovers can do with fewer

    @property
    def is_going_on(self) -> bool:
        return bool(self._missing)

    @property
    def text(self) -> str:
        """What the run waits for, as a line for the user."""
        if self._launched.are_any:
            return f"waiting for {count_text(self.needed, 'host')} to be launched"
        missing = f" ({self._missing})" if self._missing else ""
        return f"waiting for hosts{missing}: flowrl host --join {self._address}"

    def wait(
        self,
        places: Iterable[str],
        unmet_needs: Callable[[Sequence[HostOffer]], str] = lambda offers: "",
        before_poll: Callable[[], None] = lambda: None,
    ) -> Sequence[HostOffer]:
        """Wait until enough hosts have joined, each place means one of them, and all nodes have what they need.

        `unmet_needs` says what nodes lack that are put on hosts of which these are all. `before_poll` may raise, if the
        run does not need hosts any more.
        """
        places = list(places)
        self._missing = "none has joined"
        deadline_s = time.monotonic() + self.within_s
        try:
            while True:
                before_poll()
                self._joined.pump(POLL_S)
                if self._launched.is_waiting:
                    deadline_s = time.monotonic() + self.within_s
                is_over = time.monotonic() > deadline_s
                gap = self._gap(places, unmet_needs)
                self._missing = str(gap)
                if self._is_closed(gap, is_over):
                    self._have_been_enough = True
                    return gap.joined
                if why := self._why_hopeless(gap, is_over):
                    raise HostError(why)
        finally:
            self._missing = ""

    def _gap(self, places: list[str], unmet_needs: Callable[[Sequence[HostOffer]], str]) -> _Gap:
        joined = self._joined.offers()
        open_places = [p for p in places if not any(offer.matches(p) for offer in joined)]
        unmet = "" if open_places else unmet_needs(joined)
        return _Gap(joined, self.needed, open_places, unmet)

    def _is_closed(self, gap: _Gap, is_over: bool) -> bool:
        if not gap.is_placeable:
            return False
        will_not_close = is_over or bool(self._launched.missing)
        return len(gap.joined) >= self.needed or (self._have_been_enough and will_not_close)

    def _why_hopeless(self, gap: _Gap, is_over: bool) -> str:
        """Why waiting has no point any more; empty while it has."""
        for offer, why in self._admission.unfit:
            if any(map(offer.matches, gap.open_places)):
                return f"host '{offer.name}' cannot take part: {why}"
        if self._launched.failure:
            return self._launched.failure
        if self._launched.missing and not self._have_been_enough:
            return self._launched.missing
        if not is_over:
            return ""
        return "; ".join(
            [
                gap.error_text(f"within {self.within_s:g} s"),
                *[f"host '{o.name}' was refused: {why}" for o, why in self._admission.unfit],
                *self._joined.refusals(),
                f"on the host: flowrl host --join {self._address} --name NAME, with the same --key",
            ]
        )
