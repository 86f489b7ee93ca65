"""Metrics as TensorBoard reads them, written by hand: its libraries load torch, which a coordinator never needs.

A file is records, a record is a length, the length's checksum, an event, the event's checksum. An event is a
protobuf: wall_time 1, step 2, file_version 3, summary 5; a summary: value 1; a value: tag 1, simple_value 2.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from flowrl.runs.crc32c import masked_crc32c

FLUSH_EVERY_S = 2.0
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # how a protobuf's field is written


class Board:
    """One file of events; without threads, which a full disk would block for ever."""

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{int(time.time())}.{os.getpid()}"
        self._file = (folder / name).open("xb")
        self._flushed_s = 0.0
        self._write(_field(3, BYTES, b"brain.Event:2"))

    def add(self, node: str, step: int, values: Mapping[str, float]) -> None:
        """What a node measured after so many env steps."""
        scalars = [_scalar(f"{node}/{name}", value) for name, value in values.items()]
        summary = b"".join(_field(1, BYTES, scalar) for scalar in scalars)
        self._write(_field(2, VARINT, _varint(step)) + _field(5, BYTES, summary))

    def _write(self, event: bytes) -> None:
        now_s = time.time()
        event = _field(1, DOUBLE, struct.pack("<d", now_s)) + event
        length = struct.pack("<Q", len(event))
        self._file.write(length + masked_crc32c(length) + event + masked_crc32c(event))
        if now_s - self._flushed_s >= FLUSH_EVERY_S:
            self._flushed_s = now_s
            self._file.flush()

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


def _scalar(tag: str, value: float) -> bytes:
    try:
        number = struct.pack("<f", value)
    except OverflowError:  # more than a float32 holds
        number = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _field(1, BYTES, tag.encode()) + _field(2, FLOAT, number)


def _field(number: int, kind: int, data: bytes) -> bytes:
    length = _varint(len(data)) if kind == BYTES else b""
    return _varint(number << 3 | kind) + length + data


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that there are more."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
