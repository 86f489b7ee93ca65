"""Copies the large buffers of a site ahead of a snapshot, a few pieces at a time, while the run goes on.

See `docs/decisions/0034-snapshots-are-copied-ahead.md`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf

from flowrl.core.array_pieces import COPY_AHEAD_BYTES, REST_BYTES, LiveArray, piece_bounds
from flowrl.core.errors import NodeError
from flowrl.core.facts import Facts
from flowrl.runtime.instances import Instances
from flowrl.runtime.snapshot import live_state, node_key
from flowrl.runtime.stored_pieces import (
    ArrayPath,
    LiveArrays,
    PieceHashes,
    PiecePath,
    PiecesAhead,
    StoredPieces,
    live_arrays,
)

CHECK_S = 10.0  # until the next sweep, once little is left, or after copies could not be written


def is_large(facts: Facts | None) -> bool:
    """Whether the state of a node is copied ahead of snapshots."""
    return facts is not None and facts.live_state_bytes > REST_BYTES


def read_large(instances: Instances) -> dict[ArrayPath, LiveArray]:
    """Return the live arrays of the instances with a large state."""
    facts = instances.checked.facts
    large = [one for one in instances.all() if is_large(facts.get(one.spec.name))]
    return live_arrays({node_key(one.key): live_state(one) for one in large})


class CopiesAhead:
    """Sweeps over the pieces that are not stored as they are, until few are left."""

    def __init__(
        self,
        stored: StoredPieces,
        read: Callable[[], LiveArrays],
        send: Callable[[PiecesAhead], None],
    ) -> None:
        """`read` returns the large arrays as they are now. `send` lets pieces be written; `on_stored` follows."""
        self._stored, self._read, self._send = stored, read, send
        self._is_writing = False  # the last pieces
        self._live: LiveArrays = {}  # as they were at the beginning of the current sweep
        self._sweep: deque[PiecePath] = deque()  # the pieces that are left of it
        self._sweep_bytes = inf
        self._check_s = 0.0
        self.is_active = False  # whether pieces are copied, or will be when more are left
        self.is_done = False  # whether the snapshot need not wait
        self.has_failed = False  # whether the last pieces could not be written

    def begin(self) -> None:
        """Copy from now on, until `end`, so that little is left whenever the snapshot is saved."""
        if self.is_active or self.is_done:
            return
        self.is_active, self.is_done, self.has_failed = True, False, False
        self._sweep_bytes = inf
        self._sweep.clear()
        self.proceed()

    def end(self) -> None:
        if not self.has_failed:
            self._check_s = 0.0
        self.is_active = self.is_done = self.has_failed = False
        self._live = {}

    @property
    def can_proceed(self) -> bool:
        return self.is_active and not self._is_writing and time.monotonic() >= self._check_s

    def proceed(self) -> None:
        """Copy the next pieces if there is time for it. No node may be firing."""
        if not self.can_proceed:
            return
        if not self._sweep:
            self._begin_sweep()
        if self._sweep:
            self._is_writing = True
            self._send(self._stored.copy_ahead(self._live, self._next_paths()))

    def on_stored(self, hashes: PieceHashes | None) -> None:
        """Go on: the last pieces are stored, or could not be written."""
        self._is_writing = False
        if hashes is not None:
            self._stored.set_stored_ahead(hashes)
        elif self.is_active:
            self.is_active, self.has_failed = False, True
            self._check_s = time.monotonic() + CHECK_S

    def _begin_sweep(self) -> None:
        """Begin with all pieces that are not stored, unless they are few, or not much fewer than at the last sweep."""
        try:
            self._live = self._read()
        except NodeError:  # the snapshot will say so
            self._live = {}
        if not self._live:
            self.is_active, self.is_done = False, True
            return
        changed = self._stored.changed(self._live)
        left = sum(version.nbytes for version in changed.values())
        if left > REST_BYTES and left <= self._sweep_bytes / 2:
            self._sweep_bytes = left
            self._sweep.extend(changed)
            return
        if left <= REST_BYTES:
            self._sweep_bytes = inf
        self.is_done = True
        self._check_s = time.monotonic() + CHECK_S

    def _next_paths(self) -> list[PiecePath]:
        """Take the next pieces of the sweep."""
        paths, nbytes = [], 0
        while self._sweep and nbytes < COPY_AHEAD_BYTES:
            path = self._sweep.popleft()
            begin, end = piece_bounds(path.number, self._live[path.key, path.name].nbytes)
            nbytes += end - begin
            paths.append(path)
        return paths
