"""What a site does for snapshots: it saves its parts, stands still where that is asked, and sends them."""

from __future__ import annotations

from collections.abc import Callable

from flowrl.channels import SiteChannels
from flowrl.core.errors import NodeError
from flowrl.runtime.control.cuts import completed_at
from flowrl.runtime.control.messages import (
    PartsNotSaved,
    SavedParts,
    SavedPieces,
    StandsStill,
    saved_messages,
)
from flowrl.runtime.control.site_control import CoordinatorMessages, SiteReporter
from flowrl.runtime.remote.edge_factory import SiteEdgeFactory
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.site_state import Position, WaitKind
from flowrl.runtime.snapshot import save_parts


class SiteSnapshots:
    """The parts of snapshots that a site saves when the coordinator asks for them.

    A site that fires in rounds saves its parts after a round, and sends them once no cut can fall before it. A site
    that fires freely has no common round with the others: all sites *stand still*, save their parts with the tokens
    that were on their way, and go on.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        edges: SiteEdgeFactory,
        messages: CoordinatorMessages,
        reporter: SiteReporter,
        channels: SiteChannels,
        fires_freely: Callable[[], bool],
    ) -> None:
        """`fires_freely` tells whether the site fires independently of the rounds of others now."""
        self._scheduler, self._edges = scheduler, edges
        self._messages, self._reporter, self._channels = messages, reporter, channels
        self._fires_freely = fires_freely
        self._unsent: dict[int, list[SavedPieces | SavedParts | PartsNotSaved]] = {}  # by rounds
        self._is_saving = False  # parts, for which it may wait for tokens of the last round

    def is_saving_beyond(self, cut: Position) -> bool:
        """Whether the site waits for tokens of a snapshot after a round that the cut does not complete."""
        return self._is_saving and self._scheduler.site.rounds > completed_at(cut)

    def save_if_due(self) -> None:
        """Save the parts of a snapshot if the site has just completed the rounds after which one is due."""
        rounds, cut = self._scheduler.site.rounds, self._messages.cut
        if rounds not in self._messages.saves_at:
            return
        self._messages.saves_at.discard(rounds)
        if cut is not None and rounds > completed_at(cut):
            return  # some of its tokens never arrive
        self._is_saving = True
        self._unsent[rounds] = self._copied_parts(rounds)
        self._is_saving = False

    def save_at_end(self, rounds: int) -> None:
        """Save the parts of a snapshot of the cut, if the site had gone through these rounds before it was asked.

        That happens on a site on which only paced nodes fire: it has fired nothing since, because the versions that
        pace it are not there.
        """
        if rounds in self._messages.saves_at and self._scheduler.site.rounds >= rounds:
            self._messages.saves_at.discard(rounds)
            self._unsent[rounds] = self._copied_parts(rounds, may_wait=False)

    def send_settled(self, rounds: int) -> None:
        """Send the parts of snapshots up to these rounds: no cut falls before them, and their effects are committed."""
        for saved_at in [n for n in self._unsent if n <= rounds]:
            self._reporter.report(self._scheduler)  # records come before the parts that follow them
            for message in self._unsent.pop(saved_at):
                self._reporter.send(message)

    # standing still

    @property
    def shall_stand_still(self) -> bool:
        """Whether the coordinator has asked the site to fire nothing from now on, until it says otherwise."""
        after = self._messages.still_after
        return after is not None and (self._fires_freely() or self._scheduler.site.rounds >= after)

    def stand_still_if_asked(self, wait_kind: WaitKind = "idle") -> None:
        """Fire nothing until all sites have saved their parts of a snapshot, with all tokens that were on their way."""
        while self.shall_stand_still:
            self._edges.stands_still = True
            self._stand_still(wait_kind)
        self._edges.stands_still = False

    def _stand_still(self, wait_kind: WaitKind) -> None:
        messages, edges, wait = self._messages, self._edges, self._edges.waits.until_coordinator
        number, rounds = messages.standstill, messages.still_after
        assert rounds is not None
        self._channels.flush()
        self._reporter.report(self._scheduler)
        self._reporter.send(StandsStill(number, edges.sent_tokens()))

        def is_over() -> bool:
            return messages.still_after is None or messages.standstill != number

        def may_save() -> bool:
            return messages.sent_tokens is not None and edges.have_arrived(messages.sent_tokens)

        wait(lambda: is_over() or may_save(), wait_kind)
        if not is_over():
            for message in self._copied_parts(rounds, may_wait=False):
                self._reporter.send(message)
            wait(is_over, wait_kind)

    def _copied_parts(
        self, rounds: int, may_wait: bool = True
    ) -> list[SavedPieces | SavedParts | PartsNotSaved]:
        instances, stored = self._scheduler.instances, self._messages.stored_pieces
        try:
            return [*saved_messages(rounds, save_parts(instances, rounds, stored, may_wait))]
        except NodeError as error:
            return [PartsNotSaved(rounds, str(error))]
