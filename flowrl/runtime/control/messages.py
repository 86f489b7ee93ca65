"""The control messages between the coordinator and the sites: all of them.

Each site has three channels with the coordinator: `COMMANDS` to the site, `REPORTS` from it, and `FAILURES`, on
which it says why it ends, as the second may be full or not open yet. `COMMAND`, `REPORT` and `FAILURE` convert
the messages of each. Positions and counts of rounds include the warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flowrl.channels import ChannelLimits
from flowrl.core.plain_data import DataCodec
from flowrl.core.state import Count, State
from flowrl.runtime.records import RecordSource, SentRecord
from flowrl.runtime.remote.errors import RemoteError
from flowrl.runtime.site_state import Position
from flowrl.runtime.status import SiteStatus
from flowrl.runtime.token_hashing import TokenHash

COMMANDS, REPORTS, FAILURES = "down", "up", "failed"  # the channels' names begin with these
CONTROL_LIMITS = ChannelLimits(tokens=1 << 16)


@dataclass(frozen=True, slots=True)
class PositionedRecord:
    """A record, and the position of the firing that emitted it."""

    position: Position
    source: RecordSource
    record: SentRecord


class PositionedCount(NamedTuple):
    """What one firing of a collector or of the first learner counted."""

    position: Position
    counts: Count


# from the coordinator to a site


@dataclass(frozen=True, slots=True)
class GrantLease:
    """The site may begin rounds before `rounds`. No cut will fall before round `settled`, nor in the rounds before
    `settled_fired`, except right after a learner's version that paces others."""

    rounds: int
    settled: int
    settled_fired: int


@dataclass(frozen=True, slots=True)
class HashTokens:
    """The site reports hashes of tokens from its first firing on."""


@dataclass(frozen=True, slots=True)
class CutAt:
    """The earliest known cut. A later message may bring an earlier cut."""

    position: Position


@dataclass(frozen=True, slots=True)
class HaltFreeSite:
    """A site that runs freely ends after its current firing: all others have reached the cut."""


@dataclass(frozen=True, slots=True)
class SendResults:
    """All sites have reached the cut, which is final: the site sends its results."""


@dataclass(frozen=True, slots=True)
class LeaveRun:
    """The site ends at once, whatever it does."""


Command = GrantLease | HashTokens | CutAt | HaltFreeSite | SendResults | LeaveRun


# from a site to the coordinator


@dataclass(frozen=True, slots=True)
class SiteReady:
    """All nodes of the site are made. It keeps this many bytes of learners' states for each round of a lease."""

    state_bytes: int


@dataclass(frozen=True, slots=True)
class SiteProgress:
    """What has happened on the site since its last report. It has completed `rounds` rounds."""

    rounds: int
    counts: tuple[PositionedCount, ...]
    records: tuple[PositionedRecord, ...]
    status: SiteStatus


@dataclass(frozen=True, slots=True)
class SiteTokenHashes:
    """Hashes of the tokens since the site's last report, if they were asked for."""

    hashes: tuple[TokenHash, ...]


@dataclass(frozen=True, slots=True)
class TrainItersReached:
    """A first learner whose number of firings in a round is not known has fired as often as the limits ask for."""

    position: Position
    train_iters: int


@dataclass(frozen=True, slots=True)
class SiteAtCut:
    """The site has reached the cut and will fire no more."""


@dataclass(frozen=True, slots=True)
class SiteResults:
    """The learners' states at the cut, how many tokens were dropped, and what was not deterministic."""

    states: Mapping[str, State]
    dropped_tokens: int
    irregularities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteClosed:
    """All nodes of the site are closed; what they raised then."""

    errors: tuple[str, ...]


Report = (
    SiteReady
    | SiteProgress
    | SiteTokenHashes
    | TrainItersReached
    | SiteAtCut
    | SiteResults
    | SiteClosed
)


# why a site ends


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """A node raised an error."""

    error: RemoteError


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """The connection to another site broke."""

    text: str
    traceback: str


@dataclass(frozen=True, slots=True)
class SiteFailure:
    """Anything else that ended the site."""

    text: str
    traceback: str


Failure = NodeFailure | ConnectionFailure | SiteFailure

COMMAND: DataCodec[Command] = DataCodec(Command)
REPORT: DataCodec[Report] = DataCodec(Report)
FAILURE: DataCodec[Failure] = DataCodec(Failure)
