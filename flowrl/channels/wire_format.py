"""What a channel does to the payloads of its tokens on the way between two machines: it narrows and compresses them.

Neither changes a value. Numbers may be narrowed to float16 if they were rounded to it before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from flowrl.channels.codec import Memory
from flowrl.core.errors import UsageError

INSTALL_HINT = "install it on each machine of the run: pip install 'flowrl[network]'"
MIN_COMPRESSED_BYTES = 512  # smaller payloads are not worth the time
ZSTD_LEVEL = 1  # twice as fast as level 3, with the same size of columns of floats


class Compression(Protocol):
    """A lossless compression; used by one thread."""

    def compress(self, payload: bytes) -> bytes: ...

    def decompress(self, compressed: Memory, nbytes: int) -> bytes:
        """Return the payload of `nbytes` bytes, without using memory for more; raise ValueError if it is not that."""


class Lz4:
    def __init__(self) -> None:
        self._block: Any = importlib.import_module("lz4.block")

    def compress(self, payload: bytes) -> bytes:
        compressed: bytes = self._block.compress(payload, store_size=False)
        return compressed

    def decompress(self, compressed: Memory, nbytes: int) -> bytes:
        try:
            payload: bytes = self._block.decompress(compressed, uncompressed_size=nbytes)
        except self._block.LZ4BlockError as error:
            raise ValueError(str(error)) from error
        if len(payload) != nbytes:
            raise ValueError("too short")
        return payload


class Zstd:
    def __init__(self) -> None:
        self._zstd: Any = importlib.import_module("zstandard")
        self._compressor = self._zstd.ZstdCompressor(level=ZSTD_LEVEL)
        self._decompressor = self._zstd.ZstdDecompressor()

    def compress(self, payload: bytes) -> bytes:
        compressed: bytes = self._compressor.compress(payload)
        return compressed

    def decompress(self, compressed: Memory, nbytes: int) -> bytes:
        try:
            # The size that the frame states is allocated, so it is compared first.
            if self._zstd.frame_content_size(compressed) != nbytes:
                raise ValueError("another size")
            payload: bytes = self._decompressor.decompress(compressed, allow_extra_data=False)
        except self._zstd.ZstdError as error:
            raise ValueError(str(error)) from error
        return payload


class CompressionEntry(NamedTuple):
    """The registration of a compression."""

    package: str  # that has to be installed
    module: str
    make: Callable[[], Compression]


COMPRESSIONS = {
    "lz4": CompressionEntry("lz4", "lz4", Lz4),
    "zstd": CompressionEntry("zstandard", "zstandard", Zstd),
}


def missing_package(compress: str) -> str | None:
    """Return the package that a compression needs and that is not installed, if there is one."""
    entry = COMPRESSIONS.get(compress)
    return None if entry is None or find_spec(entry.module) else entry.package


@dataclass(frozen=True, slots=True)
class WireFormat:
    """How the payloads of a channel travel between machines."""

    compression: Compression | None = None
    narrows: bool = False  # float32 arrays hold numbers of float16, and are sent as such


AS_IT_IS = WireFormat()


def wire_format(compress: str, dtype: str) -> WireFormat:
    """Return the wire format of an edge with these options; raise UsageError if its package is missing."""
    missing = missing_package(compress)
    if missing is not None:
        raise UsageError(
            f"an edge has `compress: {compress}`, and the package {missing} is not installed on this machine; "
            f"{INSTALL_HINT}"
        )
    entry = COMPRESSIONS.get(compress)
    return WireFormat(entry.make() if entry else None, dtype == "float16")
