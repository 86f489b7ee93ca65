"""All control messages between the coordinator and the sites.

Each site has three channels with the coordinator: `COMMANDS` to the site, `REPORTS` from it, and `FAILURES`, on which
it reports why it ends, because `REPORTS` may be full or not open yet. `COMMAND`, `REPORT` and `FAILURE` convert the
messages of each channel. Positions and numbers of rounds include the warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowrl.channels import ChannelLimits
from flowrl.core.plain_data import DataCodec
from flowrl.core.state import Count, State
from flowrl.runtime.records import RecordSource, SentRecord
from flowrl.runtime.remote.errors import RemoteError
from flowrl.runtime.site_state import Position
from flowrl.runtime.status import SiteStatus
from flowrl.runtime.stored_pieces import PiecePath
from flowrl.runtime.token_hashing import TokenHash
from flowrl.runtime.token_summary import PeekRequest, TokenSummary

COMMANDS, REPORTS, FAILURES = "down", "up", "failed"  # prefixes of the channels' names
CONTROL_LIMITS = ChannelLimits(tokens=1 << 16)


@dataclass(frozen=True, slots=True)
class PositionedRecord:
    """A record, and the position of the firing that emitted it."""

    position: Position
    source: RecordSource
    record: SentRecord


class PositionedCount(NamedTuple):
    """The counts of one firing of a collector or of the first learner."""

    position: Position
    counts: Count


@dataclass(frozen=True, slots=True)
class ArrayBytes:
    """Bytes of an array, from `begin` on, before the `LoadParts` or `SavedParts` to which the array belongs."""

    key: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    content: Any


# from the coordinator to a site


@dataclass(frozen=True, slots=True)
class GrantLease:
    """The site may begin rounds before `rounds`. No cut will fall in rounds before `settled_rounds`.

    In rounds before `settled_paced_rounds`, a cut can only fall right after a learner's version that paces others.
    """

    rounds: int
    settled_rounds: int
    settled_paced_rounds: int


@dataclass(frozen=True, slots=True)
class HashTokens:
    """The site shall report token hashes from its first firing on; with `recorded` inputs, those with their tokens."""

    recorded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldRounds:
    """The site shall begin no further round before it is told a cut, and answer with `RoundsHeld`."""


@dataclass(frozen=True, slots=True)
class CutAt:
    """The earliest known cut. A later message may bring an earlier cut."""

    position: Position


@dataclass(frozen=True, slots=True)
class SavePartsAt:
    """The site shall save its parts of a snapshot when it has completed this many rounds. It has completed fewer."""

    rounds: int


@dataclass(frozen=True, slots=True)
class SnapshotStored:
    """The snapshot of these rounds is stored, with these pieces of the site, which later ones may leave out."""

    rounds: int
    paths: tuple[PiecePath, ...]
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CopyAhead:
    """The site shall copy large buffers ahead of a snapshot: `CopiedPieces`, and `CopiedAhead` when little is left."""


@dataclass(frozen=True, slots=True)
class PiecesStored:
    """The last `CopiedPieces` of the site are stored, or could not be written."""

    is_stored: bool
    paths: tuple[PiecePath, ...]
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoadParts:
    """Before its first firing, the site shall load its parts of a snapshot, which was saved after this many rounds.

    `fired` is how often each node had fired that may lack tokens and paces others, which follows from no rounds.
    """

    rounds: int
    parts: Mapping[str, Any]
    fired: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StandStill:
    """The site shall fire nothing until `GoOn`, and answer `StandsStill`. All sites in rounds have completed these."""

    number: int
    rounds: int


@dataclass(frozen=True, slots=True)
class SaveStandingStill:
    """All sites stand still. The site shall save its parts when the tokens have arrived that were sent, by channel."""

    sent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class GoOn:
    """The site may fire again: all sites have saved their parts."""


@dataclass(frozen=True, slots=True)
class ReplacePeer:
    """A peer of the site was started again, and listens at this address. The answer is `PeerReplaced`."""

    peer: str
    address: str
    epoch: int


class InstanceProgress(NamedTuple):
    """The firings of an instance, and what it counted in them."""

    fired: int
    counts: Count


@dataclass(frozen=True, slots=True)
class JoinRun:
    """The site was started again while the others went on. It shall begin after this many completed rounds.

    Its instances go on counting where those of the lost site had been.
    """

    rounds: int
    progress: Mapping[str, InstanceProgress]


@dataclass(frozen=True, slots=True)
class HaltFreeSite:
    """A free site shall end after its current firing: all other sites have reached the cut."""


@dataclass(frozen=True, slots=True)
class SendResults:
    """The site shall send its results: all sites have reached the cut, which is final."""


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """The site shall end at once."""


# A site with that instance answers a `PeekRequest` with a `TokenSummary`; other sites ignore it.
Command = (
    GrantLease
    | HashTokens
    | HoldRounds
    | CutAt
    | SavePartsAt
    | SnapshotStored
    | CopyAhead
    | PiecesStored
    | ArrayBytes
    | LoadParts
    | StandStill
    | SaveStandingStill
    | GoOn
    | ReplacePeer
    | JoinRun
    | HaltFreeSite
    | SendResults
    | LeaveRun
    | PeekRequest
)


# from a site to the coordinator


@dataclass(frozen=True, slots=True)
class MakingNode:
    """The site begins to make an instance."""

    instance: str


@dataclass(frozen=True, slots=True)
class SiteReady:
    """All nodes of the site are made. The site keeps `state_bytes` of learners' states for each round of a lease."""

    state_bytes: int


@dataclass(frozen=True, slots=True)
class PartsLoaded:
    """The site has loaded its parts of a snapshot."""


@dataclass(frozen=True, slots=True)
class PeerReplaced:
    """The site is connected to a peer that was started again. So many tokens to the old one were lost."""

    peer: str
    epoch: int
    lost_tokens: int


@dataclass(frozen=True, slots=True)
class CopiedPieces:
    """Pieces that the site has copied ahead of a snapshot. The answer is `PiecesStored`."""

    paths: tuple[PiecePath, ...]
    pieces: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class CopiedAhead:
    """So little is left that a snapshot need not wait, or copies could not be written (`has_failed`)."""

    has_failed: bool


@dataclass(frozen=True, slots=True)
class SavedPieces:
    """Pieces of an array that come before the `SavedParts` which they belong to, so that no message is very large."""

    rounds: int
    key: str
    name: str
    indices: tuple[int, ...]
    pieces: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SavedParts:
    """The site's parts of a snapshot, of which it has committed all effects."""

    rounds: int
    parts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartsNotSaved:
    """The site could not save its parts of a snapshot."""

    rounds: int
    problem: str


@dataclass(frozen=True, slots=True)
class SiteProgress:
    """The counts and records since the site's last report, and the number of rounds that it has completed."""

    rounds: int
    counts: tuple[PositionedCount, ...]
    records: tuple[PositionedRecord, ...]
    status: SiteStatus


@dataclass(frozen=True, slots=True)
class StandsStill:
    """The answer to `StandStill` with this number: how many tokens the site has sent, by channel."""

    number: int
    sent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RoundsHeld:
    """The answer to `HoldRounds`: how many rounds the site has begun; also 1 if it has begun none."""

    begun: int


@dataclass(frozen=True, slots=True)
class SiteTokenHashes:
    """Token hashes since the site's last report; sent after `HashTokens`."""

    hashes: tuple[TokenHash, ...]


@dataclass(frozen=True, slots=True)
class TrainItersReached:
    """The first learner, which may lack tokens, has reached the limit of train iterations."""

    position: Position
    train_iters: int


@dataclass(frozen=True, slots=True)
class SiteAtCut:
    """The site has reached the cut and will fire no more."""


@dataclass(frozen=True, slots=True)
class SiteResults:
    """What a site has at the cut: learners' states, nodes' last reports, dropped tokens, irregularities, refusals."""

    states: Mapping[str, State]
    reports: tuple[PositionedRecord, ...]
    dropped_tokens: int
    irregularities: tuple[str, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteClosed:
    """All nodes of the site are closed. `errors` are the errors that they raised."""

    errors: tuple[str, ...]


Report = (
    MakingNode
    | SiteReady
    | PartsLoaded
    | PeerReplaced
    | CopiedPieces
    | CopiedAhead
    | ArrayBytes
    | SavedPieces
    | SavedParts
    | PartsNotSaved
    | SiteProgress
    | RoundsHeld
    | StandsStill
    | SiteTokenHashes
    | TokenSummary
    | TrainItersReached
    | SiteAtCut
    | SiteResults
    | SiteClosed
)


# from a site, before it ends with a failure


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A node raised an error. `refusals`, as in the other failures, are what the site has refused."""

    error: RemoteError
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """The connection to another site broke."""

    text: str
    traceback: str
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteFailure:
    """Another error ended the site."""

    text: str
    traceback: str
    refusals: tuple[str, ...] = ()


Failure = NodeFailure | ConnectionFailure | SiteFailure

COMMAND: DataCodec[Command] = DataCodec(Command)
REPORT: DataCodec[Report] = DataCodec(Report)
FAILURE: DataCodec[Failure] = DataCodec(Failure)
