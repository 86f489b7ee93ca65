"""The checksum of TensorBoard's files: CRC-32C (Castagnoli), masked as TFRecords mask it."""

from __future__ import annotations

import functools
import struct

POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed
MASK = 0xA282EAD8


@functools.cache
def _table() -> tuple[int, ...]:
    """The checksum of each byte."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def crc32c(data: bytes) -> int:
    """The checksum of these bytes."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> bytes:
    """Rotated and shifted: a checksum of what holds checksums would be weak."""
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return struct.pack("<I", (rotated + MASK) & 0xFFFFFFFF)
