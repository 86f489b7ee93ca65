"""What a site does for snapshots: it copies ahead, stands still where that is asked, and saves and sends its parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flowrl.channels import SiteChannels
from flowrl.core.errors import NodeError
from flowrl.runtime.control.cuts import completed_at
from flowrl.runtime.control.messages import (
    ArrayBytes,
    CopiedAhead,
    CopiedPieces,
    PartsNotSaved,
    SavedParts,
    SavedPieces,
    StandsStill,
)
from flowrl.runtime.control.part_messages import saved_messages
from flowrl.runtime.control.site_control import CoordinatorMessages, SiteReporter
from flowrl.runtime.copies_ahead import CopiesAhead, read_large
from flowrl.runtime.remote.edge_factory import SiteEdgeFactory
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.site_state import Position, WaitKind
from flowrl.runtime.snapshot import save_parts
from flowrl.runtime.stored_pieces import PiecesAhead

SavedMessage = ArrayBytes | SavedPieces | SavedParts | PartsNotSaved


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
        self._copies_ahead = CopiesAhead(
            messages.stored_pieces, partial(read_large, scheduler.instances), self._send_copied
        )
        self._unsent: dict[int, list[SavedMessage]] = {}  # by rounds
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

    # copying ahead

    @property
    def shall_copy_ahead(self) -> bool:
        """Whether the site can copy some of its large buffers ahead of a snapshot now."""
        messages = self._messages
        return (
            messages.copies_ahead
            or messages.pieces_stored is not None
            or self._copies_ahead.can_proceed
        )

    def copy_ahead(self) -> None:
        """Copy a few pieces ahead of a snapshot. No node may be firing."""
        messages, ahead = self._messages, self._copies_ahead
        was_done = ahead.is_done or ahead.has_failed
        if (stored := messages.pieces_stored) is not None:
            messages.pieces_stored = None
            hashes = dict(zip(stored.paths, stored.hashes, strict=True))
            ahead.on_stored(hashes if stored.is_stored else None)
        if messages.copies_ahead:
            messages.copies_ahead = was_done = False
            ahead.begin()
        else:
            ahead.proceed()
        if not was_done and (ahead.is_done or ahead.has_failed):
            self._reporter.send(CopiedAhead(ahead.has_failed))

    def _send_copied(self, copied: PiecesAhead) -> None:
        self._reporter.send(CopiedPieces(tuple(copied.pieces), tuple(copied.pieces.values())))

    @property
    def shall_act(self) -> bool:
        """Whether there is something to do for a snapshot before the next firing."""
        return self.shall_copy_ahead or self.shall_stand_still

    def act(self) -> None:
        """Copy ahead and stand still as far as that is asked."""
        if self.shall_copy_ahead:
            self.copy_ahead()
        self.stand_still_if_asked()

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

    def _copied_parts(self, rounds: int, may_wait: bool = True) -> list[SavedMessage]:
        instances, stored = self._scheduler.instances, self._messages.stored_pieces
        self._copies_ahead.end()
        try:
            return [*saved_messages(rounds, save_parts(instances, rounds, stored, may_wait))]
        except NodeError as error:
            return [PartsNotSaved(rounds, str(error))]
