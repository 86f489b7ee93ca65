"""Lets the sites of a run save their parts of snapshots, and puts the parts together.

In rounds, the sites are told after which round they save, before any of them can have completed it. Each saves when it
has completed that round, and no site waits for another. Where nodes may lack tokens, rounds do not say which tokens
are on their way between two sites. There, all sites stand still: none fires until the tokens on their way have arrived
and every site has saved its parts. Sites with large buffers copy them ahead, before the round of a snapshot is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens_anywhere, nodes_that_may_skip_firings
from flowrl.checks.site_kinds import elastic_sites
from flowrl.core.batch import Array
from flowrl.core.errors import RunError
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.control.count_ledger import CountLedger, difference, total
from flowrl.runtime.control.leases import Leases
from flowrl.runtime.control.messages import (
    ArrayBytes,
    CopiedAhead,
    CopiedPieces,
    CopyAhead,
    GoOn,
    PartsNotSaved,
    PiecesStored,
    PositionedCount,
    SavedParts,
    SavedPieces,
    SavePartsAt,
    SaveStandingStill,
    SnapshotStored,
    StandsStill,
    StandStill,
)
from flowrl.runtime.control.part_messages import ArrivedArrays, load_messages, with_pieces
from flowrl.runtime.copies_ahead import is_large
from flowrl.runtime.sites.launched_sites import LaunchedSites
from flowrl.runtime.sites.part_sites import site_of_parts
from flowrl.runtime.sites.site_restarts import SiteRestarts
from flowrl.runtime.snapshot import node_key
from flowrl.runtime.snapshot_schedule import Snapshot, SnapshotSink
from flowrl.runtime.stored_pieces import PiecesAhead

PARTS_S = 60.0  # without any report, at the end of a run, before its snapshot is given up


@dataclass(slots=True)
class PendingSnapshot:
    """A snapshot of which some parts are missing."""

    sites: set[str]  # whose parts are missing
    parts: dict[str, SavedState] = field(default_factory=dict)
    pieces: dict[str, dict[str, dict[int, Array]]] = field(default_factory=dict)  # by part, array
    # At its end of a round, once all sites in rounds have reached it: without the counts of free sites.
    counts: Count | None = None
    # By free site: its counts when it saved its parts.
    free_counts: dict[str, Count] = field(default_factory=dict)
    mark: Any = None


@dataclass(slots=True)
class Standstill:
    """All sites stand still for a snapshot after these rounds."""

    rounds: int
    # Whether the sites were told, which they are when those in rounds have completed these.
    is_requested: bool = False
    moving: set[str] = field(default_factory=set)  # the sites that have not answered
    sent: dict[str, int] = field(default_factory=dict)  # tokens, by channel


class SnapshotAssembly:
    """The snapshots of a run on several sites that are being saved."""

    def __init__(
        self,
        checked: CheckedGraph,
        layout: SiteLayout,
        sites: LaunchedSites,
        restarts: SiteRestarts,
        leases: Leases,
        ledger: CountLedger,
        release_records: Callable[[int], None],
        settle: Callable[[], None],
    ) -> None:
        """`release_records` emits the records of rounds before a given one.

        `settle` tells sites before which round no cut can fall: they send their parts when none can fall before.
        """
        self.sink: SnapshotSink | None = None
        self._program = checked.program
        self._sites, self._restarts = sites, restarts
        self._leases, self._ledger = leases, ledger
        self._release_records, self._settle = release_records, settle
        self._pending: dict[int, PendingSnapshot] = {}  # by completed rounds
        self._needs_standstill = bool(nodes_that_may_skip_firings(checked.program))
        self._standstill: Standstill | None = None
        self._standstills = 0  # that were asked for so far
        self._saves_at_end = False  # of a run that needs a standstill
        self._part_sites, self._relays = site_of_parts(checked, layout), layout.relays
        self._large_sites = {
            site for (node, _), site in layout.site_of.items() if is_large(checked.facts.get(node))
        }
        # The sites that copy ahead of a snapshot and have not said that little is left; None if no site was asked to.
        self._copying: set[str] | None = None
        self._arrived: dict[str, ArrivedArrays] = {}  # by site: of parts that have not arrived
        self._copied: dict[str, PiecesAhead] = {}  # by site: what is being written
        self._free_counts: dict[str, Count] = {}  # by free site, since this part of the run began
        self._may_begin_anew = elastic_sites(checked, layout)
        # By elastic site: the parts that it has saved last, for snapshots that are saved while it is away.
        self._last_parts: dict[str, dict[str, SavedState]] = {}

    @property
    def is_standing_still(self) -> bool:
        """Whether sites stand still for a snapshot, or will when they have completed their lease."""
        return self._standstill is not None

    # when to save

    def begin_after(self, rounds: int) -> None:
        """Announce the snapshots that are known before a run begins, or continues after so many rounds."""
        if self.sink is not None:
            self.save_after(known for known in self.sink.schedule.known if known > rounds)

    def save_within(self, first: int, last: int) -> None:
        """Save what is due after these rounds, none of which any site can have completed."""
        if self.sink is None:
            return
        due = self.sink.schedule.due_within(first, last, self._are_copied_ahead(first, last))
        if not self._needs_standstill:
            self.save_after(due)
        elif due - self.sink.schedule.known:
            self._standstill = Standstill(last)

    def save_after(self, rounds: Iterable[int]) -> None:
        """Let all sites save their parts when they have completed these rounds."""
        if self.sink is None:
            return
        self.announce_stored()
        for number in sorted(set(rounds) - self._pending.keys()):
            if self._needs_standstill:
                self._saves_at_end = True
                continue
            self._pending[number] = PendingSnapshot(set(self._sites.names))
            self._sites.send(SavePartsAt(number))

    def announce_stored(self) -> None:
        """Tell sites which of their copies are stored, so that they do not copy the same again."""
        for stored in () if self.sink is None else self.sink.take_stored():
            hashes = stored.hashes or {}
            if isinstance(stored.copy, PiecesAhead):
                answer = PiecesStored(stored.hashes is not None, (*hashes,), (*hashes.values(),))
                for site in [s for s, copied in self._copied.items() if copied is stored.copy]:
                    del self._copied[site]
                    self._sites.send_to(site, answer)
                continue
            for site in {self._part_sites[path.key] for path in hashes} - self._restarts.away:
                own = {p: sha for p, sha in hashes.items() if self._part_sites[p.key] == site}
                self._sites.send_to(site, SnapshotStored(stored.copy, (*own,), (*own.values(),)))

    # copying ahead

    def _are_copied_ahead(self, first: int, last: int) -> bool:
        """Return whether a snapshot need not wait for large buffers; ask sites to copy them if one is wanted.

        While a snapshot of rounds that a site may have completed is saved, no site is asked.
        """
        if not (large := self._large_sites - self._restarts.away) or self.sink is None:
            return True
        is_wanted = self.sink.schedule.wants_copies_ahead(first)
        if self._copying is None and is_wanted and min(self._pending, default=last + 1) > last:
            self._copying = set(large)
            for site in large:
                self._sites.send_to(site, CopyAhead())
        return self._copying is not None and not self._copying

    def write_ahead(self, site: str, copied: CopiedPieces) -> None:
        """Let pieces be written that a site has copied ahead."""
        if self.sink is not None:
            pieces = dict(zip(copied.paths, copied.pieces, strict=True))
            self._copied[site] = PiecesAhead(pieces)
            self.sink.write_ahead(self._copied[site])

    def on_copied_ahead(self, site: str, report: CopiedAhead) -> None:
        """Note that a site has copied ahead, or give up the snapshot that waits for it."""
        if self._copying is not None and self.sink is not None:
            self._copying.discard(site)
            if report.has_failed:
                self._copying = None
                self.sink.schedule.postpone()

    def lose(self, site: str) -> None:
        """Wait neither for copies of a lost site nor for tokens that it has sent, which may never arrive."""
        self._copied.pop(site, None)
        self._arrived.pop(site, None)
        if self._copying is not None:
            self._copying.discard(site)
        self.go_on()

    # standing still

    def stand_still(self) -> None:
        """Let all sites stand still once those in rounds have completed the last ones of their lease."""
        still = self._standstill
        if still is None or still.is_requested or self._leases.completed_rounds < still.rounds:
            return
        still.is_requested = True
        still.moving = set(self._sites.names) - self._restarts.away
        self.announce_stored()
        self._pending[still.rounds] = PendingSnapshot({*still.moving})
        self._standstills += 1
        self._sites.send(StandStill(self._standstills, still.rounds))

    def on_stands_still(self, site: str, report: StandsStill) -> None:
        """When all sites stand still, tell them which tokens must arrive before they save their parts."""
        still = self._standstill
        if still is None or report.number != self._standstills:
            return  # the answer to one that was given up
        still.moving.discard(site)
        still.sent.update(report.sent)
        if not still.moving:
            self._sites.send(SaveStandingStill(still.sent))

    def go_on(self) -> None:
        """Let sites that stand still fire again: the snapshot is complete, or cannot be saved."""
        still, self._standstill = self._standstill, None
        if still is not None and still.is_requested:
            self._pending.pop(still.rounds, None)
            self._sites.send(GoOn())

    def save_at_end(self, rounds: int, receive_reports: Callable[[], float]) -> None:
        """Save the snapshot of the cut, in which no site fires any more, if one is wanted that needs a standstill.

        `receive_reports` returns the time of the last report.
        """
        if not self._saves_at_end or self.sink is None:
            return
        self.go_on()
        self._standstill = Standstill(rounds)
        begun_s = time.monotonic()
        while self._standstill is not None:
            self.stand_still()
            last_report_s = receive_reports()
            if time.monotonic() > max(begun_s, last_report_s) + PARTS_S:
                late = ", ".join(f"'{name}'" for name in sorted(self._standstill.moving))
                self.go_on()
                why = f"the sites have not saved their parts within {PARTS_S:g} s"
                self.sink.fail(f"{why}; waiting for {late or 'tokens on their way'}")

    # the parts

    def count_free(self, site: str, counts: Sequence[PositionedCount]) -> None:
        """Add what a free site has counted, whose snapshots are of no round."""
        before = self._free_counts.get(site, Count())
        self._free_counts[site] = total([before, *(one.counts for one in counts)])

    def mark_completed(self, completed: int) -> None:
        """Mark the run's files for snapshots of rounds that all sites have completed, at the end of those rounds."""
        for rounds, pending in sorted(self._pending.items()):
            if rounds <= completed and pending.counts is None and self.sink is not None:
                self._release_records(rounds)
                so_far = self._ledger.counts_at((rounds - 1,))
                pending.counts = difference(so_far, total(self._free_counts.values()))
                pending.mark = self.sink.mark()
                self._settle()

    def add_pieces(self, saved: SavedPieces) -> None:
        """Take a few pieces of a part, which itself follows."""
        if (pending := self._pending.get(saved.rounds)) is not None:
            arrays = pending.pieces.setdefault(saved.key, {})
            new = zip(saved.indices, saved.pieces, strict=True)
            arrays.setdefault(saved.name, {}).update(new)

    def add_array(self, site: str, array: ArrayBytes) -> None:
        """Take bytes of an array of the next parts of a site."""
        self._arrived.setdefault(site, ArrivedArrays()).add(array)

    def add_parts(self, site: str, saved: SavedParts) -> None:
        """Take the parts of a site, and write the snapshot if they were the last ones."""
        parts = self._arrived.pop(site, ArrivedArrays()).decode_parts(saved.parts)
        pending = self._pending.get(saved.rounds)
        if pending is None:
            return  # another site could not save its parts
        own = {key: with_pieces(part, pending.pieces.pop(key, {})) for key, part in parts.items()}
        pending.parts |= own
        if site in self._free_counts:
            pending.free_counts[site] = self._free_counts[site]
        # Pieces that are stored already are found in the snapshots before, but not for ever.
        if site in self._may_begin_anew and not any(part.pieces for part in own.values()):
            self._last_parts[site] = own
        pending.sites.discard(site)
        if not pending.sites:
            self._write(saved.rounds, pending)

    def give_up(self, report: PartsNotSaved) -> None:
        """Do without a snapshot of which a site could not save its parts."""
        if self._pending.pop(report.rounds, None) and self.sink is not None:
            self._copying = None
            self.sink.fail(report.problem)
            self.go_on()

    def _write(self, rounds: int, pending: PendingSnapshot) -> None:
        if self.sink is None:
            return
        self.mark_completed(rounds)
        assert pending.counts is not None
        if self._standstill is not None:
            # Free sites have fired, and counted, until they stood still.
            pending.mark = self.sink.mark()
        for away in self._restarts.away:
            pending.parts = {**self._last_parts.get(away, {}), **pending.parts}
        counts = total([pending.counts, *(self._free_counts | pending.free_counts).values()])
        del self._pending[rounds]
        self._copying = None
        self.go_on()
        self.sink.write(Snapshot(rounds, counts, pending.mark, pending.parts))

    # a run that continues

    def send_parts(self, snapshot: Snapshot) -> None:
        """Let all sites load their parts of a snapshot."""
        own: dict[str, dict[str, SavedState]] = {name: {} for name in self._sites.names}
        for key, saved in snapshot.parts.items():
            if key not in self._part_sites:
                raise RunError(f"the snapshot has the part '{key}', which the graph does not have")
            own[self._part_sites[key]][key] = saved
            for array in saved.arrays.values():
                array.flags.writeable = False  # the run may have to load them again
        fired = self._fired_without_rounds(snapshot)
        for name, parts in own.items():
            if name in self._may_begin_anew:
                self._last_parts[name] = parts
            elif not parts and name not in self._relays:
                raise RunError(f"the snapshot has no part of site '{name}'; it is of another graph")
            if name not in self._restarts.absent:
                for message in load_messages(snapshot.rounds, parts, fired):
                    self._sites.send_when_ready(name, message)

    def _fired_without_rounds(self, snapshot: Snapshot) -> dict[str, int]:
        """Return how often nodes had fired that may lack tokens and pace others."""
        program = self._program
        pacers = {paced.source.node for paced in program.paced} & may_lack_tokens_anywhere(program)
        parts = {name: snapshot.parts.get(node_key(name)) for name in pacers}
        return {name: int(part.state_dict()["fired"]) for name, part in parts.items() if part}
