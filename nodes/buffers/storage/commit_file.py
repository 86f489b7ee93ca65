"""The commit file of a mapped buffer records which rows the column files hold.

It has two slots, written alternately, so one of them is always intact. A record is written after the rows that it
covers are on the disk, and its range is shortened before rows in it are overwritten. All rows that the newest intact
record covers are therefore on the disk, no matter when the process was killed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from flowrl.nodes.buffers.storage.limits import preallocate

MAGIC = b"flowrlRB"
SLOT_BYTES = 4096  # one page each, so that no write touches both
RECORD_STRUCT = struct.Struct("<8sQQQQQQQ")  # magic, and the fields of `CommitRecord`
CHECKSUM_STRUCT = struct.Struct("<I")  # CRC-32 of the record


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The numbers of the rows that the files hold, and the place of the next row."""

    first_row: int = 0
    stop_row: int = 0
    next_place: int = 0
    released_rows: int = 0  # rows of the last flush that may have been overwritten since
    closed: bool = True  # whether the process that wrote the record closed the buffer
    pid: int = 0
    generation: int = 0


class CommitFile:
    """The commit file of one buffer. It is locked while it is open."""

    def __init__(self, path: Path, record: CommitRecord | None = None) -> None:
        """Open the file, or create it with this record. Only one process at a time can have it open."""
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if record is None else os.O_CREAT | os.O_EXCL)
        self._file = os.open(path, flags, 0o644)
        try:
            self._lock(path)
            if record is not None:
                preallocate(self._file, path, 2 * SLOT_BYTES)
            self.record = self._newest_record(path) if record is None else record
        except BaseException:
            os.close(self._file)
            raise

    def write(self, record: CommitRecord) -> None:
        """Replace the older record by this one, and wait until it is on the disk."""
        self.record = replace(record, pid=os.getpid(), generation=self.record.generation + 1)
        os.pwrite(self._file, _encode(self.record), self.record.generation % 2 * SLOT_BYTES)
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        os.close(self._file)

    def _lock(self, path: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as locked:
            newest = max(
                self._intact_records(), key=lambda record: record.generation, default=CommitRecord()
            )
            raise BlockingIOError(
                f"'{path.parent}' is in use by process {newest.pid}; "
                "wait until it has ended, or set another `path`"
            ) from locked

    def _newest_record(self, path: Path) -> CommitRecord:
        records = self._intact_records()
        if not records:
            raise ValueError(
                f"'{path}': neither record is intact; "
                "the folder is not a buffer of flowrl, or another program changed it"
            )
        return max(records, key=lambda record: record.generation)

    def _intact_records(self) -> list[CommitRecord]:
        slots = [os.pread(self._file, SLOT_BYTES, offset) for offset in (0, SLOT_BYTES)]
        return [record for slot in slots if (record := _decode(slot)) is not None]


def _encode(record: CommitRecord) -> bytes:
    packed = RECORD_STRUCT.pack(
        MAGIC,
        record.first_row,
        record.stop_row,
        record.next_place,
        record.released_rows,
        int(record.closed),
        record.pid,
        record.generation,
    )
    return packed + CHECKSUM_STRUCT.pack(zlib.crc32(packed))


def _decode(slot: bytes) -> CommitRecord | None:
    """Return the record in a slot, or None if it is not intact."""
    if len(slot) < RECORD_STRUCT.size + CHECKSUM_STRUCT.size:
        return None
    packed = slot[: RECORD_STRUCT.size]
    if CHECKSUM_STRUCT.unpack_from(slot, RECORD_STRUCT.size)[0] != zlib.crc32(packed):
        return None
    magic, first, stop, place, released, closed, pid, generation = RECORD_STRUCT.unpack(packed)
    if magic != MAGIC:
        return None
    return CommitRecord(first, stop, place, released, bool(closed), pid, generation)
