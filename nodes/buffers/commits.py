"""What a file of rows claims to hold: two records, written in turn, so that one is always whole.

A record claims the rows `first` to `stop`. Rows are claimed after they are written, and given up before
they are overwritten; so what the newest whole record claims is there, whenever the process was killed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from flowrl.nodes.buffers.capacity import take_from_disk

MAGIC = b"flowrlRB"
SLOT_BYTES = 4096  # a page each: no write touches both
PACKED = struct.Struct("<8sQQQQQQQ")  # magic, and the fields below
CHECKED = struct.Struct("<I")  # CRC-32 of that


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows that are there: their numbers, and the place of the next one."""

    first: int = 0
    stop: int = 0
    next: int = 0
    given_up: int = 0  # rows that were claimed by the flush before, and may be overwritten since
    closed: bool = True  # whoever wrote it ended well
    pid: int = 0
    generation: int = 0


class Commits:
    """The record file of one buffer, locked as long as it is open."""

    def __init__(self, path: Path, claim: Claim | None = None) -> None:
        """Open it, or make it with this claim. Only one process may have it open."""
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if claim is None else os.O_CREAT | os.O_EXCL)
        self._file = os.open(path, flags, 0o644)
        try:
            self._lock(path)
            if claim is not None:
                take_from_disk(self._file, path, 2 * SLOT_BYTES)
            self.claim = self._newest(path) if claim is None else claim
        except BaseException:
            os.close(self._file)
            raise

    def write(self, claim: Claim) -> None:
        """Claim this, for good: the older of both records is replaced."""
        self.claim = replace(claim, pid=os.getpid(), generation=self.claim.generation + 1)
        packed = _pack(self.claim)
        os.pwrite(self._file, packed, self.claim.generation % 2 * SLOT_BYTES)
        os.fdatasync(self._file)

    def close(self) -> None:
        """Let others open it."""
        os.close(self._file)

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            pid = max(self._whole(), key=lambda claim: claim.generation, default=Claim()).pid
            raise BlockingIOError(
                f"'{path.parent}' is in use by process {pid}; "
                "wait until that has ended, or give another `path`"
            ) from taken

    def _newest(self, path: Path) -> Claim:
        whole = self._whole()
        if not whole:
            raise ValueError(
                f"'{path}': neither record is whole; this is no buffer of flowrl, or it was changed"
            )
        return max(whole, key=lambda claim: claim.generation)

    def _whole(self) -> list[Claim]:
        found = [os.pread(self._file, SLOT_BYTES, at) for at in (0, SLOT_BYTES)]
        return [claim for slot in found if (claim := _unpack(slot)) is not None]


def _pack(claim: Claim) -> bytes:
    fields = (claim.first, claim.stop, claim.next, claim.given_up, int(claim.closed))
    packed = PACKED.pack(MAGIC, *fields, claim.pid, claim.generation)
    return packed + CHECKED.pack(zlib.crc32(packed))


def _unpack(slot: bytes) -> Claim | None:
    """The record, if it is whole."""
    if len(slot) < PACKED.size + CHECKED.size:
        return None
    packed = slot[: PACKED.size]
    if CHECKED.unpack_from(slot, PACKED.size)[0] != zlib.crc32(packed):
        return None
    magic, first, stop, place, given_up, closed, pid, generation = PACKED.unpack(packed)
    if magic != MAGIC:
        return None
    return Claim(first, stop, place, given_up, bool(closed), pid, generation)
