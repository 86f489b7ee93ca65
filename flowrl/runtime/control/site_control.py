"""A site's ends of its control channels: it receives commands of the coordinator, and sends reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from typing_extensions import assert_never

from flowrl.channels import SiteChannels
from flowrl.core.state import Count
from flowrl.graph.site_layout import COORDINATOR
from flowrl.runtime.control.messages import (
    COMMAND,
    COMMANDS,
    CONTROL_LIMITS,
    REPORT,
    REPORTS,
    ArrayBytes,
    CopyAhead,
    CutAt,
    GoOn,
    GrantLease,
    HaltFreeSite,
    HashTokens,
    HoldRounds,
    JoinRun,
    LeaveRun,
    LoadParts,
    PiecesStored,
    PositionedCount,
    PositionedRecord,
    ReplacePeer,
    Report,
    SavePartsAt,
    SaveStandingStill,
    SendResults,
    SiteProgress,
    SiteTokenHashes,
    SnapshotStored,
    StandStill,
)
from flowrl.runtime.control.part_messages import ArrivedArrays
from flowrl.runtime.interruptions import SiteStopped
from flowrl.runtime.remote.waiting import WAIT_S
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.site_state import Position
from flowrl.runtime.status_reader import read_status
from flowrl.runtime.stored_pieces import StoredPieces
from flowrl.runtime.token_hashing import TokenHash
from flowrl.runtime.token_summary import PeekRequest, TokenSummary

PERIOD_S = 0.05  # between reports
PERIOD_PER_SITE_S = 0.001  # longer with many sites, because the coordinator reads all reports


def report_period_s(sites: int) -> float:
    """Return after how long a site reports again, in a run with so many sites."""
    return max(PERIOD_S, PERIOD_PER_SITE_S * sites)


class CoordinatorMessages:
    """The state that the coordinator's commands set. Commands are received whenever the site's channels are polled."""

    def __init__(self, channels: SiteChannels, site: str) -> None:
        self._commands = channels.open_receiver(
            f"{COMMANDS}:{site}", COORDINATOR, limits=CONTROL_LIMITS
        )
        self.granted_rounds = 0
        self.cut: Position | None = None  # the earliest known one
        self.is_held = False  # whether no round may begin until a cut is known
        self.is_halted = False
        # The completed rounds after which parts of snapshots are to be saved.
        self.saves_at: set[int] = set()
        self.still_after: int | None = None  # the rounds after which the site shall stand still
        self.standstill = 0  # the number of the last one that was asked for
        # What the sites have sent that all stand still, once they do.
        self.sent_tokens: Mapping[str, int] | None = None
        self.stored_pieces = StoredPieces(copies=2)  # one here, and one with the coordinator
        self.copies_ahead = False  # whether large buffers are to be copied ahead of a snapshot
        self.pieces_stored: PiecesStored | None = None  # the answer to the last pieces that were
        self.parts_to_load: LoadParts | None = None
        self.arrived_arrays = ArrivedArrays()  # of these parts
        self.run_to_join: JoinRun | None = None
        self.results_requested = False
        self.must_leave = False
        self.on_settled: Callable[[int, int], None] = lambda rounds, paced_rounds: None
        self.on_hash_tokens: Callable[[HashTokens], None] = lambda command: None
        self.on_hold: Callable[[], None] = lambda: None
        self.on_peek: Callable[[PeekRequest], None] = lambda request: None
        self.on_replace_peer: Callable[[ReplacePeer], None] = lambda command: None
        channels.on_receive(self._receive)

    def _receive(self) -> None:
        while len(self._commands):
            command = COMMAND.decode(self._commands.take()[0])
            match command:
                case GrantLease():
                    self.granted_rounds = command.rounds
                    self.on_settled(command.settled_rounds, command.settled_paced_rounds)
                case CutAt():
                    self.cut, self.is_held = command.position, False
                case HoldRounds():
                    self.is_held = True
                    self.on_hold()
                case SavePartsAt():
                    self.saves_at.add(command.rounds)
                case SnapshotStored():
                    hashes = dict(zip(command.paths, command.hashes, strict=True))
                    self.stored_pieces.set_stored(command.rounds, hashes)
                case CopyAhead():
                    self.copies_ahead = True
                case PiecesStored():
                    self.pieces_stored = command
                case ArrayBytes():
                    self.arrived_arrays.add(command)
                case LoadParts():
                    self.parts_to_load = command
                case StandStill():
                    self.still_after, self.sent_tokens = command.rounds, None
                    self.standstill = command.number
                case SaveStandingStill():
                    self.sent_tokens = command.sent
                case GoOn():
                    self.still_after = self.sent_tokens = None
                case ReplacePeer():
                    self.on_replace_peer(command)
                case JoinRun():
                    self.run_to_join = command
                case HashTokens():
                    self.on_hash_tokens(command)
                case PeekRequest():
                    self.on_peek(command)
                case HaltFreeSite():
                    self.is_halted = True
                case SendResults():
                    self.results_requested = True
                case LeaveRun():
                    self.must_leave = True
                case _:
                    assert_never(command)
        if self.must_leave:
            raise SiteStopped


class SiteReporter:
    """Collects the counts, records and token hashes of a site, and sends them to the coordinator."""

    def __init__(self, channels: SiteChannels, site: str, sites: int) -> None:
        self._channels, self._site = channels, site
        self._reports = channels.open_sender(
            f"{REPORTS}:{site}", COORDINATOR, limits=CONTROL_LIMITS
        )
        self._period_s = report_period_s(sites)
        self._counts: list[PositionedCount] = []
        self._records: list[PositionedRecord] = []
        self._hashes: list[TokenHash] = []
        self._summaries: list[TokenSummary] = []
        self._sent_s = 0.0
        self._sent_rounds = -1

    def send(self, report: Report) -> None:
        self._channels.wait(self._reports, WAIT_S)
        self._reports.send(REPORT.encode(report))
        self._channels.flush()

    def answer(self, report: Report) -> None:
        """Answer a command, also in the middle of a wait: the channel has room for it."""
        self._reports.send(REPORT.encode(report))
        self._channels.flush()

    def add_record(self, record: PositionedRecord) -> None:
        self._records.append(record)

    def add_count(self, position: Position, count: Count) -> None:
        self._counts.append(PositionedCount(position, count))

    def add_hash(self, token: TokenHash) -> None:
        self._hashes.append(token)

    def add_summary(self, summary: TokenSummary) -> None:
        self._summaries.append(summary)

    def report_periodically(self, scheduler: Scheduler) -> None:
        """Report if the period since the last report is over."""
        if time.perf_counter() - self._sent_s > self._period_s:
            self.report(scheduler)

    def report_if_new(self, scheduler: Scheduler) -> None:
        """Report if there is anything new, because other sites may wait for it."""
        rounds, new = scheduler.site.rounds, (self._records, self._counts, self._hashes)
        if rounds != self._sent_rounds or any(new) or self._summaries:
            self.report(scheduler)

    def report(self, scheduler: Scheduler) -> None:
        """Report all new counts, records and hashes, and the status of the site."""
        # The wait comes first: it may raise SiteStopped, and nothing may be lost then.
        self._channels.wait(self._reports, WAIT_S)
        if self._hashes:
            hashes, self._hashes = self._hashes, []
            self.send(SiteTokenHashes(tuple(hashes)))
        summaries, self._summaries = self._summaries, []
        for summary in summaries:
            self.send(summary)
        counts, self._counts = self._counts, []
        records, self._records = self._records, []
        status = read_status(scheduler, self._site)
        self._sent_rounds = scheduler.site.rounds
        self.send(SiteProgress(self._sent_rounds, tuple(counts), tuple(records), status))
        self._sent_s = time.perf_counter()
