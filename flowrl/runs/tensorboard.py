"""Writes metrics as TensorBoard event files.

tensorboardX would do this, but it loads torch (0.7 s and 195 MB in every coordinator; docs/dependencies.md has the
measurement), so the format is written here. A file is a sequence of records: length, checksum of the length, event,
checksum of the event. The checksum is CRC-32C, masked as TFRecord files mask it.

An event is a protobuf with the fields wall_time 1, step 2, file_version 3, summary 5 and session_log 7; a session log
has a status 1; a summary has values 1; a
value has tag 1, simple_value 2, histogram 5 and metadata 9. A histogram has the least number 1, the greatest 2, the
count 3, the sum 4, the sum of squares 5, and for each bin its upper edge 6 and its count 7, both packed. The metadata
of a value without a number say which plugin reads it: plugin_data 1 has plugin_name 1 and content 2. The content for
the page HPARAMS has version 1, and session_start_info 3 (hparams 1, a map with the fields key 1 and value 2;
start_time_secs 5) or session_end_info 4 (status 1, end_time_secs 2).
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from flowrl.core.histogram import Histogram

FLUSH_EVERY_S = 2.0
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # protobuf wire types
REVERSED_POLYNOMIAL = 0x82F63B78  # of CRC-32C (Castagnoli)
CHECKSUM_MASK = 0xA282EAD8
SESSION_START = 1  # of a session log
SUCCESS, FAILURE = 1, 2  # statuses of a session of the plugin hparams


class TensorBoardWriter:
    """One event file. It is written without a thread, because a full disk would block a thread for ever."""

    def __init__(self, folder: Path) -> None:
        self._file = _new_file(folder)
        self._flushed_s = 0.0
        self._write(_field(3, BYTES, b"brain.Event:2"))

    def add(self, node: str, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a node at an env step."""
        scalars = [_scalar(f"{node}/{name}", value) for name, value in values.items()]
        summary = b"".join(_field(1, BYTES, scalar) for scalar in scalars)
        self._write(_field(2, VARINT, _varint(step)) + _field(5, BYTES, summary))

    def add_histograms(self, node: str, step: int, histograms: Mapping[str, Histogram]) -> None:
        """Write histograms of a node at an env step."""
        values = [
            _field(1, BYTES, f"{node}/{name}".encode()) + _field(5, BYTES, _histogram(histogram))
            for name, histogram in histograms.items()
        ]
        summary = b"".join(_field(1, BYTES, value) for value in values)
        self._write(_field(2, VARINT, _varint(step)) + _field(5, BYTES, summary))

    def replace_after(self, step: int) -> None:
        """Let TensorBoard hide what earlier files have after this step, because the run continues from there."""
        start = _field(1, VARINT, _varint(SESSION_START))
        self._write(_field(2, VARINT, _varint(step + 1)) + _field(7, BYTES, start))

    def begin_session(self, settings: Mapping[str, bool | float | str]) -> None:
        """Write the settings of the run, which the page HPARAMS compares with those of other runs."""
        entries = [
            _field(1, BYTES, _field(1, BYTES, name.encode()) + _field(2, BYTES, _setting(value)))
            for name, value in settings.items()
        ]
        start = _field(5, DOUBLE, struct.pack("<d", time.time()))
        self._write_hparams("session_start_info", 3, b"".join(entries) + start)
        self._file.flush()  # a run that continues does not write them again

    def end_session(self, success: bool) -> None:
        status = _field(1, VARINT, _varint(SUCCESS if success else FAILURE))
        end = _field(2, DOUBLE, struct.pack("<d", time.time()))
        self._write_hparams("session_end_info", 4, status + end)

    def _write_hparams(self, name: str, number: int, info: bytes) -> None:
        content = _field(1, VARINT, _varint(0)) + _field(number, BYTES, info)
        plugin = _field(1, BYTES, b"hparams") + _field(2, BYTES, content)
        tag = _field(1, BYTES, f"_hparams_/{name}".encode())
        value = tag + _field(9, BYTES, _field(1, BYTES, plugin))
        self._write(_field(5, BYTES, _field(1, BYTES, value)))

    def _write(self, event: bytes) -> None:
        now_s = time.time()
        event = _field(1, DOUBLE, struct.pack("<d", now_s)) + event
        length = struct.pack("<Q", len(event))
        self._file.write(length + masked_crc32c(length) + event + masked_crc32c(event))
        if now_s - self._flushed_s >= FLUSH_EVERY_S:
            self._flushed_s = now_s
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def _setting(value: bool | float | str) -> bytes:
    """A `google.protobuf.Value`: number_value 2, string_value 3 or bool_value 4."""
    if isinstance(value, bool):
        return _field(4, VARINT, _varint(value))
    if isinstance(value, str):
        return _field(3, BYTES, value.encode())
    return _field(2, DOUBLE, struct.pack("<d", value))


def _histogram(histogram: Histogram) -> bytes:
    edges, counts = histogram.edges, histogram.counts
    numbers = (edges[0], edges[-1], sum(counts), histogram.total, histogram.squares)
    fields = [_field(k, DOUBLE, struct.pack("<d", x)) for k, x in enumerate(numbers, 1)]
    fields += [_field(6, BYTES, _doubles(edges[1:])), _field(7, BYTES, _doubles(counts))]
    return b"".join(fields)


def _doubles(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def _scalar(tag: str, value: float) -> bytes:
    try:
        number = struct.pack("<f", value)
    except OverflowError:  # larger than any float32
        number = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _field(1, BYTES, tag.encode()) + _field(2, FLOAT, number)


def _new_file(folder: Path) -> BinaryIO:
    """Make a file for events. A process may begin several in a second, for a run that it continues."""
    stem = f"events.out.tfevents.{int(time.time())}.{os.getpid()}"
    for number in count():
        with suppress(FileExistsError):
            return (folder / (f"{stem}.{number}" if number else stem)).open("xb")
    raise AssertionError("some number is free")


def _field(number: int, wire_type: int, data: bytes) -> bytes:
    length = _varint(len(data)) if wire_type == BYTES else b""
    return _varint(number << 3 | wire_type) + length + data


def _varint(value: int) -> bytes:
    """A non-negative integer in 7-bit groups, lowest first; the high bit of a byte says that another follows."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


@functools.cache
def _crc32c_table() -> tuple[int, ...]:
    """The checksum of each byte."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (REVERSED_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def crc32c(data: bytes) -> int:
    table, crc = _crc32c_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted, because the CRC of data that contains its own CRC is weak."""
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + CHECKSUM_MASK) & 0xFFFFFFFF)
