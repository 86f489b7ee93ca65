"""Shared memory: a slot becomes free with its last view, and no memory has a name that could be left behind."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.channels import ChannelLimits, Receiver, RefusedMessage, Sender
from flowrl.channels.ipc import IpcTransport
from flowrl.channels.shared_memory import (
    Arena,
    PeerMemory,
    Slab,
    is_shared_memory_supported,
    slot_size,
)
from flowrl.core.batch import Batch
from tests.channels.site_pairs import SitePair, open_pair

BIG = 300_000


@pytest.fixture
def channel(sharing_sites: SitePair) -> tuple[Sender, Receiver]:
    """A channel with open slabs for arrays of all sizes that the tests send."""
    sender, receiver = sharing_sites.open_channel(ChannelLimits(2))
    for size in (BIG, 8 * BIG, 16 * BIG):
        sharing_sites.transfer(sender, receiver, [np.zeros(size, np.uint8)])
    sharing_sites.poll_until(
        lambda: (
            len(slabs(sharing_sites)) == 3 and all(slab.is_open for slab in slabs(sharing_sites))
        )
    )
    return sender, receiver


def arena(sites: SitePair) -> Arena:
    return sites.a.connections.connections["b"].arena  # type: ignore[attr-defined, no-any-return]


def slabs(sites: SitePair) -> list[Slab]:
    return list(arena(sites).slabs())


def memory_of_a(sites: SitePair) -> PeerMemory:
    """Return the memory of site a that site b has open."""
    transport = sites.b.connections._transport_of["a"]
    assert isinstance(transport, IpcTransport)
    return transport.peer_memory["a"]


def taken_slots(sites: SitePair) -> int:
    return sum(sum(slab.map[: slab.slots]) for slab in slabs(sites))


def test_a_slot_becomes_free_when_its_token_is_collected(
    sharing_sites: SitePair, channel: tuple[Sender, Receiver]
) -> None:
    value = sharing_sites.transfer(*channel, [np.arange(BIG)])[0]
    assert taken_slots(sharing_sites) == 1
    assert value[-1] == BIG - 1
    del value
    assert taken_slots(sharing_sites) == 0


def test_views_and_tensors_keep_their_slot(
    sharing_sites: SitePair, channel: tuple[Sender, Receiver]
) -> None:
    torch = pytest.importorskip("torch")
    batch = sharing_sites.transfer(*channel, [Batch({"x": np.arange(BIG), "y": np.ones(BIG)})])[0]
    disconnect = batch["x"][5:7].reshape(2, 1)
    del batch
    assert taken_slots(sharing_sites) == 1
    copy = np.array(disconnect)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the array is read-only
        tensor = torch.from_numpy(disconnect)
    del disconnect
    gc.collect()
    assert taken_slots(sharing_sites) == 1
    assert tensor.tolist() == copy.tolist() == [[5], [6]]
    del tensor
    assert taken_slots(sharing_sites) == 0


def test_a_slot_with_views_is_not_reused(
    sharing_sites: SitePair, channel: tuple[Sender, Receiver]
) -> None:
    held = [sharing_sites.transfer(*channel, [np.full(BIG, i, np.uint8)])[0] for i in range(40)]
    assert [int(v.min()) for v in held] == [int(v.max()) for v in held] == list(range(40))
    assert sharing_sites.a.connections.traffic().shared_tokens > 0


def test_free_slots_are_reused(sharing_sites: SitePair, channel: tuple[Sender, Receiver]) -> None:
    before = sharing_sites.a.connections.traffic()
    for i in range(50):
        sharing_sites.transfer(*channel, [np.full(BIG, i, np.uint8)])
        sharing_sites.poll_until(lambda: channel[0].all_taken)
    after = sharing_sites.a.connections.traffic()
    assert after.shared_tokens - before.shared_tokens == 50
    assert after.shared_bytes == before.shared_bytes


def test_a_receiver_that_keeps_all_tokens_does_not_stop_its_sender(tmp_path: Path) -> None:
    with open_pair("shared", tmp_path, shared_bytes=4 * BIG) as sites:
        sender, receiver = sites.open_channel(ChannelLimits(2))
        kept = sites.transfer(sender, receiver, [np.full(BIG, i, np.uint8) for i in range(30)])
        assert [int(v[0]) for v in kept] == list(range(30))
        statistics = sites.a.connections.traffic()
        assert statistics.not_shared > 10
        assert statistics.shared_bytes <= 5 * BIG
        assert statistics.bytes_sent > 10 * BIG


def test_slots_of_a_broken_channel_become_free(
    sharing_sites: SitePair, channel: tuple[Sender, Receiver]
) -> None:
    sender, receiver = channel
    sender.send(np.zeros(BIG))
    receiver.close()
    sharing_sites.poll_until(lambda: sender.send_error)
    sharing_sites.poll_until(lambda: taken_slots(sharing_sites) == 0)


def test_a_duplicate_token_does_not_free_its_slot(
    sharing_sites: SitePair, channel: tuple[Sender, Receiver]
) -> None:
    sender, receiver = channel
    sharing_sites.poll_until(lambda: sender.all_taken)
    sender.send(np.zeros(BIG))
    sender.on_resend_request(0)
    sharing_sites.poll_until(lambda: receiver.statistics().duplicates == 1)
    value = receiver.take()[0]
    assert taken_slots(sharing_sites) == 1
    del value
    assert taken_slots(sharing_sites) == 0


def test_idle_slabs_make_room_for_another_size(tmp_path: Path) -> None:
    with open_pair("shared", tmp_path, shared_bytes=3 << 20) as sites:
        sender, receiver = sites.open_channel()
        for size in (1 << 20, 2 << 20, 1 << 17):
            for _ in range(3):
                sites.transfer(sender, receiver, [np.zeros(size, np.uint8)])
                sites.poll_until(lambda: all(slab.is_open for slab in slabs(sites)))
        assert sites.a.connections.traffic().shared_bytes < 4 << 20
        assert slot_size(1 << 17) in {slab.slot_bytes for slab in slabs(sites)}
        sites.poll_until(lambda: len(memory_of_a(sites)) == len(slabs(sites)))


def test_the_socket_is_used_if_the_receiver_cannot_open_memory(sharing_sites: SitePair) -> None:
    memory_of_a(sharing_sites).open = lambda *slab: False  # type: ignore[method-assign]
    sender, receiver = sharing_sites.open_channel()
    for i in range(5):
        assert int(sharing_sites.transfer(sender, receiver, [np.full(BIG, i, np.uint8)])[0][0]) == i
    assert (arena(sharing_sites).used_bytes, arena(sharing_sites).capacity_bytes) == (0, 0)
    assert sharing_sites.a.connections.traffic().shared_tokens == 0


def test_the_socket_is_used_if_no_memory_is_left(
    sharing_sites: SitePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, begin: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    sender, receiver = sharing_sites.open_channel()
    assert sharing_sites.transfer(sender, receiver, [np.arange(BIG)])[0][-1] == BIG - 1
    assert sharing_sites.a.connections.traffic().not_shared == 1


def test_shared_memory_has_no_name(
    sharing_sites: SitePair, channel: tuple[Sender, Receiver]
) -> None:
    before = os.listdir("/dev/shm")
    value = sharing_sites.transfer(*channel, [np.arange(BIG)])[0]
    assert not [name for name in os.listdir("/dev/shm") if "flowrl" in name]
    assert os.listdir("/dev/shm") == before
    del value


def test_views_outlive_the_connections(tmp_path: Path) -> None:
    with open_pair("shared", tmp_path) as sites:
        sender, receiver = sites.open_channel()
        for _ in range(3):
            value = sites.transfer(sender, receiver, [np.arange(BIG)])[0]
            sites.poll_until(lambda: slabs(sites)[0].is_open)
        assert sites.a.connections.traffic().shared_tokens > 0
    np.testing.assert_array_equal(value, np.arange(BIG))


@pytest.fixture
def slab() -> Iterator[Slab]:
    slab = Slab(0, 4096, 2)
    yield slab
    slab.close()


def announcement_of(slab: Slab) -> tuple[PeerMemory, dict[str, Any]]:
    facts = {"pid": os.getpid(), "fd": slab.fd, "slot_bytes": slab.slot_bytes, "slots": slab.slots}
    return PeerMemory(), facts


@pytest.mark.parametrize(
    "wrong",
    [{"slots": 3}, {"slots": 0}, {"slot_bytes": 8192}, {"slot_bytes": -1}, {"slots": 10**6}],
)
def test_a_slab_of_another_size_is_refused(slab: Slab, wrong: dict[str, int]) -> None:
    peer_memory, facts = announcement_of(slab)
    with pytest.raises(RefusedMessage, match="slab"):
        peer_memory.open(0, **{**facts, **wrong})


def test_a_slab_of_a_dead_process_cannot_be_opened(slab: Slab) -> None:
    peer_memory, facts = announcement_of(slab)
    assert not peer_memory.open(0, **{**facts, "pid": 2**22 + 1})


@pytest.mark.parametrize(("slot", "nbytes"), [(2, 1), (-1, 1), (0, 4097), (0, 0), (0, -5)])
def test_invalid_slots_are_refused(slab: Slab, slot: int, nbytes: int) -> None:
    peer_memory, facts = announcement_of(slab)
    assert peer_memory.open(0, **facts)
    with pytest.raises(RefusedMessage, match="slot"):
        peer_memory.read_slot(0, slot, nbytes)
    with pytest.raises(RefusedMessage, match="slab"):
        peer_memory.read_slot(1, 0, 1)


def test_unsealed_memory_is_refused() -> None:
    fd = os.memfd_create("flowrl-unsealed")
    os.ftruncate(fd, mmap.PAGESIZE * 2)
    with pytest.raises(RefusedMessage, match="slab"):
        PeerMemory().open(0, os.getpid(), fd, 4096, 1)
    os.close(fd)


@pytest.mark.parametrize("nbytes", [1, 4096, 4097, 100_000, 1 << 20, (1 << 20) + 1, 123_456_789])
def test_a_slot_holds_its_payload_and_wastes_little(nbytes: int) -> None:
    assert nbytes <= slot_size(nbytes) <= max(nbytes * 1.26, 4096 * 2)
    assert slot_size(nbytes) % 4096 == 0
    assert slot_size(slot_size(nbytes)) == slot_size(nbytes)


def test_this_system_supports_shared_memory() -> None:
    assert is_shared_memory_supported()
