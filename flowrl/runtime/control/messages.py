"""All control messages between the coordinator and the sites.

Each site has three channels with the coordinator: `COMMANDS` to the site, `REPORTS` from it, and `FAILURES`, on which
it reports why it ends, because `REPORTS` may be full or not open yet. `COMMAND`, `REPORT` and `FAILURE` convert the
messages of each channel. Positions and numbers of rounds include the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from flowrl.channels import ChannelLimits
from flowrl.core.array_pieces import ArrayPieces
from flowrl.core.batch import Array
from flowrl.core.plain_data import DataCodec
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count, State
from flowrl.runtime.records import RecordSource, SentRecord
from flowrl.runtime.remote.errors import RemoteError
from flowrl.runtime.site_state import Position
from flowrl.runtime.snapshot import Parts
from flowrl.runtime.status import SiteStatus
from flowrl.runtime.stored_pieces import PiecePath
from flowrl.runtime.token_hashing import TokenHash
from flowrl.runtime.token_summary import PeekRequest, TokenSummary


def encode_parts(parts: Parts) -> dict[str, Any]:
    """Return parts of a snapshot as channels carry them."""
    return {
        key: [
            dict(saved.arrays),
            saved.text,
            {name: _encode_pieces(array) for name, array in saved.pieces.items()},
        ]
        for key, saved in parts.items()
    }


def load_messages(
    rounds: int, parts: Parts, fired: Mapping[str, int]
) -> Iterator[ArrayBytes | LoadParts]:
    """Yield the messages with which the coordinator sends the parts that a site shall load."""
    rest = {}
    for key, saved in parts.items():
        joined = {name: array.joined() for name, array in saved.pieces.items()}
        whole = SavedState({**saved.arrays, **joined}, saved.text)
        yield from _array_messages(key, whole)
        rest[key] = _without_large_arrays(whole)
    yield LoadParts(rounds, encode_parts(rest), fired)


def saved_messages(rounds: int, parts: Parts) -> Iterator[ArrayBytes | SavedPieces | SavedParts]:
    """Yield the messages with which a site sends its parts of a snapshot."""
    rest = {}
    for key, saved in parts.items():
        for name, array in saved.pieces.items():
            indices, pieces = tuple(array.pieces), tuple(array.pieces.values())
            for begin in range(0, len(indices), MESSAGE_PIECES):
                some = slice(begin, begin + MESSAGE_PIECES)
                yield SavedPieces(rounds, key, name, indices[some], pieces[some])
        yield from _array_messages(key, saved)
        rest[key] = _without_large_arrays(saved)
    yield SavedParts(rounds, encode_parts(rest))


def _array_messages(key: str, saved: SavedState) -> Iterator[ArrayBytes]:
    for name, array in saved.arrays.items():
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for begin in range(0, len(content) if _is_large(array) else 0, MESSAGE_BYTES):
            some = content[begin : begin + MESSAGE_BYTES]
            yield ArrayBytes(key, name, array.dtype.str, array.shape, begin, some)


def _without_large_arrays(saved: SavedState) -> SavedState:
    """Return a part without what is sent before it."""
    arrays, text = saved.parts()
    empty = {name: replace(array, pieces={}) for name, array in saved.pieces.items()}
    return SavedState({n: a for n, a in arrays.items() if not _is_large(a)}, text, empty)


def _is_large(array: Array) -> bool:
    return array.nbytes > MESSAGE_BYTES // 1024


def with_pieces(saved: SavedState, pieces: Mapping[str, Mapping[int, Array]]) -> SavedState:
    """Return a part with the pieces that were sent before it."""
    whole = {n: replace(array, pieces=pieces.get(n, {})) for n, array in saved.pieces.items()}
    return SavedState(*saved.parts(), whole)


def _encode_pieces(array: ArrayPieces) -> list[Any]:
    return [array.dtype.str, list(array.shape), dict(array.pieces), dict(array.stored)]


class ArrivedArrays:
    """Large arrays of parts, whose bytes arrive before the parts."""

    def __init__(self) -> None:
        self._arrays: dict[str, dict[str, Array]] = {}  # by part and name

    def add(self, message: ArrayBytes) -> None:
        own = self._arrays.setdefault(message.key, {})
        if message.name not in own:
            own[message.name] = np.empty(message.shape, np.dtype(message.dtype))
        flat = own[message.name].reshape(-1).view(np.uint8)
        flat[message.begin : message.begin + len(message.content)] = message.content

    def decode_parts(self, data: Mapping[str, Any]) -> dict[str, SavedState]:
        """Return the parts of a snapshot that a channel has carried, with the arrays that came before them."""
        found = {}
        for key, (arrays, text, encoded) in data.items():
            pieces = {name: _decode_pieces(*array) for name, array in encoded.items()}
            found[key] = SavedState({**arrays, **self._arrays.pop(key, {})}, text, pieces)
        return found


def _decode_pieces(dtype: str, shape: list[int], pieces: Any, stored: Any) -> ArrayPieces:
    return ArrayPieces(np.dtype(dtype), tuple(shape), pieces, stored)


COMMANDS, REPORTS, FAILURES = "down", "up", "failed"  # prefixes of the channels' names
MESSAGE_PIECES = 4  # of 4 MB, in one message
MESSAGE_BYTES = 16 << 20  # of an array
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
    """The learners' states at the cut, the number of dropped tokens, irregularities, and what the site has refused."""

    states: Mapping[str, State]
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
