"""Restores the serial order of records that several sites emit at their own pace.

Sites send records (metrics, log lines, checkpoints) with their position in the serial program. A record is released to
the run's sink once every site has completed its round, so that no earlier record can still arrive. Records beyond the
cut are dropped. Hashes of tokens are reordered in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from flowrl.runtime.control.cuts import includes
from flowrl.runtime.control.messages import PositionedRecord
from flowrl.runtime.records import Irregularities, RecordSink
from flowrl.runtime.site_state import Position
from flowrl.runtime.token_hashing import TokenHash, TokenHashSink

P = TypeVar("P", PositionedRecord, TokenHash)


class RecordReorderer:
    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self.hash_sink: TokenHashSink | None = None
        self.irregularities = Irregularities()
        self._records: list[PositionedRecord] = []
        self._hashes: list[TokenHash] = []

    def add(self, record: PositionedRecord) -> None:
        """Hold a record until `release_before` reaches its round."""
        self._records.append(record)

    def add_hashes(self, hashes: Iterable[TokenHash]) -> None:
        """Hold token hashes likewise. The hashes of one firing keep their order; replicas of a group have theirs."""
        self._hashes += hashes

    def emit_now(self, record: PositionedRecord) -> None:
        """Pass on a record whose order does not matter, such as a record of a free site."""
        self.irregularities.pass_on(self._sink, record.source, record.record)

    def release_before(self, first_open_round: int | None, cut: Position | None) -> None:
        """Emit, in serial order, the records up to the cut of rounds before `first_open_round`, or of all rounds."""
        records, self._records = _split(self._records, first_open_round, cut)
        for record in records:
            self.emit_now(record)
        hashes, self._hashes = _split(self._hashes, first_open_round, cut)
        hashes.sort(key=lambda token_hash: (token_hash.position, token_hash.replica))
        if self.hash_sink is not None:
            for token_hash in hashes:
                self.hash_sink(token_hash)


def _split(
    items: list[P], first_open_round: int | None, cut: Position | None
) -> tuple[list[P], list[P]]:
    """Return the items of earlier rounds, sorted and up to the cut, and the items of later rounds."""
    if first_open_round is None:
        earlier, later = items, []
    else:
        earlier = [item for item in items if item.position[0] < first_open_round]
        if not earlier:
            return [], items
        later = [item for item in items if item.position[0] >= first_open_round]
    kept = [item for item in earlier if cut is None or includes(cut, item.position)]
    return sorted(kept, key=lambda item: item.position), later
