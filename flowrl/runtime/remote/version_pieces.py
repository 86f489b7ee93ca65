"""Versions of a state as tokens of a limited size, so that a relay passes on what has arrived of a large version.

A relay passes on whole tokens. A large version in one token would have to arrive at each level of the tree before it is
sent to the next level. A version that is cut reaches the last level little later than the first one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from flowrl.channels import Receiver
from flowrl.core.batch import Array
from flowrl.core.state import State
from flowrl.runtime.remote.edges import RemoteInput
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.site_state import Wait
from flowrl.runtime.streams import Push, Token

PIECES = 8  # of a version: more would cost more time of cores than they save on links
MIN_PIECE_BYTES = 256 << 10
MAX_HELD = 2  # versions that a reader holds before it takes the first one


class CutVersion(NamedTuple):
    """A version without its large arrays, whose pieces follow."""

    names: tuple[str, ...]  # of all arrays, in order
    rest: State
    shapes: Mapping[str, tuple[int, ...]]  # of the large arrays
    pieces: int  # that follow


# Of large arrays in one dimension, each with the index at which it begins.
Piece = dict[str, tuple[int, Array]]


def push_in_pieces(push: Push) -> Push:
    """Return a function that pushes large versions in pieces."""

    def cut_and_push(token: Token) -> None:
        state, clock = token
        for value in cut_version(state):
            push((value, clock))

    return cut_and_push


def cut_version(state: State | None) -> Iterator[State | tuple[object, ...] | Piece | None]:
    """Yield the tokens of a version. One that is small is sent as it is, and so is None, for no new version."""
    if state is None:
        yield None
        return
    large = {n: a for n, a in state.arrays.items() if a.flags.c_contiguous and a.size}
    nbytes = sum(array.nbytes for array in large.values())
    piece_bytes = max(-(-nbytes // PIECES), MIN_PIECE_BYTES)
    if nbytes <= piece_bytes:
        yield state
        return
    pieces = list(_pieces(large, piece_bytes))
    rest = replace(state, arrays={n: a for n, a in state.arrays.items() if n not in large})
    shapes = {name: array.shape for name, array in large.items()}
    yield tuple(CutVersion(tuple(state.arrays), rest, shapes, len(pieces)))
    yield from pieces


def _pieces(arrays: Mapping[str, Array], piece_bytes: int) -> Iterator[Piece]:
    """Yield the numbers of arrays, in order, in pieces of about so many bytes."""
    piece: Piece = {}
    room = piece_bytes
    for name, array in arrays.items():
        flat, begin = array.reshape(-1), 0
        while begin < len(flat):
            end = min(begin + max(room // array.itemsize, 1), len(flat))
            piece[name] = begin, flat[begin:end]
            room -= (end - begin) * array.itemsize
            begin = end
            if room <= 0 or begin < len(flat):
                yield piece
                piece, room = {}, piece_bytes
    if piece:
        yield piece


class JoinedVersion:
    """A version whose pieces arrive."""

    def __init__(self, cut: CutVersion) -> None:
        self._cut, self._missing = cut, cut.pieces
        self._arrays: dict[str, Array] = {}

    def add(self, piece: Piece) -> State | None:
        """Copy a piece to its place, and return the version if it is whole."""
        for name, (begin, numbers) in piece.items():
            if begin == 0:
                self._arrays[name] = np.empty(self._cut.shapes[name], numbers.dtype)
            self._arrays[name].reshape(-1)[begin : begin + len(numbers)] = numbers
        self._missing -= 1
        if self._missing:
            return None
        for array in self._arrays.values():
            array.flags.writeable = False
        arrays = {**self._cut.rest.arrays, **self._arrays}
        return replace(self._cut.rest, arrays={name: arrays[name] for name in self._cut.names})


class VersionInput(RemoteInput):
    """A queue of versions that arrive in pieces, which are joined while the site waits."""

    def __init__(self, waits: SiteWaits, receiver: Receiver, wait: Wait) -> None:
        super().__init__(waits, receiver, wait)
        self._arriving: JoinedVersion | None = None
        waits.channels.on_receive(self._join_arrived)

    def _join_arrived(self) -> None:
        """Take pieces when they arrive, so that relays need not keep them; but hold few versions."""
        while len(self.receiver) and self._held() < MAX_HELD:
            value, clock = self.receiver.take()
            if self._arriving is not None:
                value = self._arriving.add(value)
                if value is None:
                    continue
                self._arriving = None
            elif isinstance(value, tuple):
                self._arriving = JoinedVersion(CutVersion(*value))
                continue
            self.append((value, clock))

    def _held(self) -> int:
        return deque.__len__(self)

    def _has_token(self) -> bool:
        self._join_arrived()
        # A receiver that is ready, and holds nothing, raises what has ended it.
        return self._held() > 0 or (not len(self.receiver) and self.receiver.is_ready())

    def __len__(self) -> int:
        """Return how many versions can be taken without waiting."""
        self._join_arrived()
        return self._held()
