"""What sites tell, told to the run in the order of the program: once no site can tell anything before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from flowrl.runtime.control.cuts import includes
from flowrl.runtime.control.messages import PositionedRecord
from flowrl.runtime.records import Irregularities, RecordSink
from flowrl.runtime.site_state import Position
from flowrl.runtime.token_hashing import Note, TokenHash


class Placed(Protocol):
    """Something that has a position in the program."""

    @property
    def position(self) -> Position:
        """Where."""


P = TypeVar("P", bound=Placed)


class RecordReorderer:
    """Records, and hashes of tokens if somebody wants them."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self.note: Note | None = None  # who is told the hashes
        self.irregularities = Irregularities()
        self._told: list[PositionedRecord] = []
        self._hashed: list[TokenHash] = []

    def add(self, told: PositionedRecord) -> None:
        """A record that waits for its turn."""
        self._told.append(told)

    def add_hashed(self, rows: Iterable[Any]) -> None:
        """The same for hashes, as plain data; those of one firing in their order."""
        self._hashed += [TokenHash(tuple(position), *rest) for position, *rest in rows]

    def tell(self, told: PositionedRecord) -> None:
        """A record that has no turn."""
        self.irregularities.pass_on(self._sink, told.source, told.record)

    def tell_before(self, rounds: int | None, cut: Position | None) -> None:
        """All that is of earlier rounds (of any, if None), and not beyond the cut."""
        now, self._told = _divided(self._told, rounds, cut)
        for told in now:
            self.tell(told)
        hashed, self._hashed = _divided(self._hashed, rounds, cut)
        if self.note is not None:
            for one in hashed:
                self.note(one)


def _divided(placed: list[P], rounds: int | None, cut: Position | None) -> tuple[list[P], list[P]]:
    """What is of earlier rounds, in order and without what the cut leaves out; and the rest."""
    now = [p for p in placed if rounds is None or p.position[0] < rounds]
    if not now:
        return [], placed
    later = [p for p in placed if rounds is not None and p.position[0] >= rounds]
    kept = [p for p in now if cut is None or includes(cut, p.position)]
    return sorted(kept, key=lambda p: p.position), later
