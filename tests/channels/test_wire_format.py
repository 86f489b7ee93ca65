"""Between machines, tokens may be narrowed and compressed: they arrive as they were, and no message does harm."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.channels import ChannelLimits, Receiver, RefusedMessage, Sender
from flowrl.channels.messages import CompressedPayload, attach_payloads
from flowrl.channels.wire_format import (
    COMPRESSIONS,
    MIN_COMPRESSED_BYTES,
    Compression,
    WireFormat,
    missing_package,
    wire_format,
)
from flowrl.core.batch import Batch, is_aligned
from flowrl.core.errors import UsageError
from tests.channels.site_pairs import TRANSPORTS, SitePair, open_pair

INSTALLED = [name for name in COMPRESSIONS if missing_package(name) is None]
needs_zstd = pytest.mark.skipif("zstd" not in INSTALLED, reason="zstandard is not installed")
EACH = [pytest.param("lz4"), pytest.param("zstd", marks=needs_zstd)]
LINES = np.tile(np.arange(100, dtype=np.float32), 200)  # 80 KB, which compress well


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[SitePair]:
    """Two sites on a network."""
    with open_pair("curve", tmp_path) as pair:
        yield pair


def open_channel(
    sites: SitePair, wire: WireFormat, limits: ChannelLimits | None = None
) -> tuple[Sender, Receiver]:
    limits = limits or ChannelLimits()
    sender = sites.a.open_sender("x", "b", limits, wire)
    return sender, sites.b.open_receiver("x", "a", limits, wire)


def batches(numbers: int = 5) -> list[Batch]:
    """Return tokens of different sizes, with several columns and orders of axes."""
    rng = np.random.default_rng(0)
    return [
        Batch(
            {
                "lines": LINES[: 4000 * n].reshape(-1, 4),
                "noise": rng.standard_normal((1000 * n, 3)).astype(np.float16).astype(np.float32),
                "flag": np.arange(1000 * n) % 2 == 0,
            }
        )
        for n in range(numbers)
    ]


def are_equal(one: Batch, other: Batch) -> bool:
    return one.schema == other.schema and all(
        one[name].tobytes() == other[name].tobytes() and is_aligned(one[name]) for name in one
    )


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("narrows", [False, True])
@pytest.mark.parametrize("compress", EACH)
def test_tokens_arrive_as_they_were(
    compress: str, narrows: bool, kind: str, tmp_path: Path
) -> None:
    tokens = batches()
    with open_pair(kind, tmp_path) as sites:
        wire = wire_format(compress, "float16" if narrows else "float32")
        sender, receiver = open_channel(sites, wire)
        taken = sites.transfer(sender, receiver, tokens)
        assert all(map(are_equal, taken, tokens))
        counts = sender.statistics()
        assert counts.bytes >= sum(token.nbytes for token in tokens)
        assert receiver.statistics().bytes == counts.bytes
        if kind != "curve":  # a site on the same machine
            assert counts.wire_bytes is None
        else:
            assert counts.wire_bytes is not None
            assert counts.wire_bytes < counts.bytes * (0.4 if narrows else 0.7)


def test_narrowed_tokens_take_half_the_bytes(sites: SitePair) -> None:
    sender, receiver = open_channel(sites, wire_format("none", "float16"))
    assert (sites.transfer(sender, receiver, [LINES])[0] == LINES).all()
    counts = sender.statistics()
    assert counts.bytes == pytest.approx(LINES.nbytes, rel=0.01)
    assert counts.wire_bytes == pytest.approx(LINES.nbytes / 2, rel=0.01)


@pytest.mark.parametrize("compress", EACH)
@pytest.mark.parametrize("nbytes", [0, 1, MIN_COMPRESSED_BYTES - 1, MIN_COMPRESSED_BYTES, 2 << 20])
def test_what_does_not_become_smaller_is_sent_as_it_is(
    compress: str, nbytes: int, sites: SitePair
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    sender, receiver = open_channel(sites, wire_format(compress, "float32"))
    assert (sites.transfer(sender, receiver, [noise])[0] == noise).all()
    counts = sender.statistics()
    assert counts.wire_bytes is not None
    assert nbytes < counts.wire_bytes < nbytes + 100


def test_small_payloads_are_not_compressed(sites: SitePair) -> None:
    sender, receiver = open_channel(sites, wire_format("lz4", "float32"))
    zeros = np.zeros(MIN_COMPRESSED_BYTES - 64, np.uint8)
    assert (sites.transfer(sender, receiver, [zeros])[0] == zeros).all()
    assert (sender.statistics().wire_bytes or 0) > len(zeros)


def refused_by_b(sites: SitePair, reason: str) -> bool:
    return (f"{reason} in x", "a") in sites.b.connections.traffic().refused


def test_a_compressed_token_is_refused_where_the_channel_has_none(sites: SitePair) -> None:
    sender = sites.a.open_sender("x", "b", ChannelLimits(), wire_format("lz4", "float32"))
    receiver = sites.b.open_receiver("x", "a")
    sender.send(LINES)
    sites.poll_until(lambda: refused_by_b(sites, "compressed"))
    assert not receiver.is_ready()


class Lying(Compression):
    """Sends another compressed payload than that of the token."""

    def __init__(self, compressed: bytes) -> None:
        self._compressed = compressed

    def compress(self, payload: bytes) -> bytes:
        return self._compressed


@pytest.mark.parametrize("nbytes", [0, LINES.nbytes - 1, LINES.nbytes + 1, 16 << 20])
@pytest.mark.parametrize("compress", EACH)
def test_a_payload_of_another_size_is_refused_without_using_its_memory(
    compress: str, nbytes: int, sites: SitePair
) -> None:
    wire = wire_format(compress, "float32")
    assert wire.compression is not None
    lying = Lying(wire.compression.compress(bytes(nbytes)))
    limits = ChannelLimits()
    sender = sites.a.open_sender("x", "b", limits, WireFormat(lying))
    receiver = sites.b.open_receiver("x", "a", limits, wire)
    tracemalloc.start()
    try:
        sender.send(LINES)
        tracemalloc.reset_peak()
        sites.poll_until(lambda: refused_by_b(sites, "compressed"))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert not receiver.is_ready()


@pytest.mark.parametrize("garbage", [b"", b"\0", b"\xff" * 100, b"\x28\xb5\x2f\xfd" + bytes(9)])
@pytest.mark.parametrize("compress", EACH)
def test_garbage_is_refused(compress: str, garbage: bytes) -> None:
    wire = wire_format(compress, "float32")
    assert wire.compression is not None
    for memory in (garbage, np.frombuffer(garbage, np.uint8)):
        with pytest.raises(RefusedMessage, match="compressed"):
            CompressedPayload(memory, 100).decompress(wire.compression)


@pytest.mark.parametrize("compress", EACH)
def test_what_follows_a_compressed_payload_is_refused(compress: str) -> None:
    compression = wire_format(compress, "float32").compression
    assert compression is not None
    good = compression.compress(bytes(1000))
    assert compression.decompress(good, 1000) == bytes(1000)
    with pytest.raises(ValueError, match=r"."):
        compression.decompress(good + good, 1000)


def test_a_payload_larger_than_any_token_is_refused() -> None:
    def frames(location: int) -> list[Any]:
        return [[0, "x", 0, 0, None, None, location, 0]]

    found = attach_payloads(frames(-1000), 0, [b"c"], None, 1000)[0][6]
    assert (found.compressed, found.nbytes) == (b"c", 1000)
    for location, parts in ((-1001, [b"c"]), (-1, [])):
        with pytest.raises(RefusedMessage, match="compressed"):
            attach_payloads(frames(location), 0, parts, None, 1000)


def test_compressed_tokens_beyond_the_limit_of_bytes_are_refused(sites: SitePair) -> None:
    """A sender that ignores its limits cannot fill the receiver's memory with tokens that are small on the way."""
    wire = wire_format("lz4", "float32")
    limits = ChannelLimits(tokens=50, bytes=3 << 20)
    sender = sites.a.open_sender("x", "b", ChannelLimits(tokens=50, bytes=1 << 40), wire)
    receiver = sites.b.open_receiver("x", "a", limits, wire)
    for _ in range(20):
        sender.send(np.zeros(1 << 20, np.uint8))
    sites.poll_until(lambda: refused_by_b(sites, "over capacity"))
    assert len(receiver) == 3


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_sender_that_keeps_the_limit_of_bytes_is_never_refused(
    tokens: int, sites: SitePair
) -> None:
    wire = wire_format("lz4", "float32")
    sizes = [1 << 18, 1 << 20, 1 << 21, 1 << 16] * 8
    limits = ChannelLimits(tokens=16, bytes=tokens << 20)
    sender, receiver = open_channel(sites, wire, limits)
    taken = sites.transfer(sender, receiver, [np.zeros(size, np.uint8) for size in sizes])
    assert list(map(len, taken)) == sizes
    assert not sites.b.connections.traffic().refused


@pytest.mark.parametrize("compress", COMPRESSIONS)
def test_a_missing_package_is_named(compress: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = COMPRESSIONS[compress].package
    monkeypatch.setattr("flowrl.channels.wire_format.find_spec", lambda module: None)
    words = rf"`compress: {compress}`, and the package {package} is not installed on this machine; install"
    with pytest.raises(UsageError, match=words):
        wire_format(compress, "float32")
    assert missing_package("none") is None


def test_packages_are_imported_only_where_they_are_used() -> None:
    code = "import flowrl.channels.wire_format, sys; sys.exit('zstandard' in sys.modules or 'lz4' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
