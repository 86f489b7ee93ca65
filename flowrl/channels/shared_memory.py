"""Shared memory for large payloads: one copy when sending, none when receiving.

The sending site owns *slabs* of equally large slots. A slab is a memfd. It has no name, so it cannot be left behind
however the processes end, and the size of /dev/shm does not limit it. The receiving site opens the slab through
/proc. The slab is used once the receiver has confirmed that. Slabs are sealed: their size cannot change while they
are mapped.

The first page of a slab holds one byte for each slot, which is 1 while the slot is in use. The sender sets the
byte, and the receiver clears it when the last view of the slot is garbage-collected. So returning a slot costs no
message.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from flowrl.channels.errors import RefusedMessage
from flowrl.core.batch import Array

FLAGS_BYTES = 4096  # the first page: one byte for each slot
MAX_SLAB_BYTES = 64 << 20  # the number of slots doubles, up to slabs of this size
FIRST_SLAB_BYTES = 1 << 20
NAME_PREFIX = "flowrl-"  # of the memory's name in /proc
SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW

Announce = Callable[[int, int, int, int, int], None]  # number, pid, fd, slot_bytes, slots


def is_shared_memory_supported() -> bool:
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


# the sending site


class Slot:
    """A reserved slot of a slab."""

    __slots__ = ("index", "slab")

    def __init__(self, slab: Slab, index: int) -> None:
        self.slab, self.index = slab, index

    @property
    def memory(self) -> Array:
        slab = self.slab
        start = FLAGS_BYTES + self.index * slab.slot_bytes
        return np.frombuffer(slab.map, np.uint8, slab.slot_bytes, start)

    def free(self) -> None:
        self.slab.map[self.index] = 0


class Slab:
    """Equally large slots in one memfd."""

    def __init__(self, number: int, slot_bytes: int, slots: int) -> None:
        self.number, self.slot_bytes, self.slots = number, slot_bytes, slots
        self.nbytes = FLAGS_BYTES + slot_bytes * slots
        self.is_open = False  # whether the receiver has opened it
        self.fd = os.memfd_create(f"{NAME_PREFIX}{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, self.nbytes)  # an error now instead of a signal later
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self.map = mmap.mmap(self.fd, self.nbytes, flags=flags)
        except OSError:
            os.close(self.fd)
            raise

    def reserve_slot(self) -> Slot | None:
        """Reserve the first free slot, which is most likely to be in the processor's cache."""
        index = self.map.find(b"\0", 0, self.slots)
        if index < 0:
            return None
        self.map[index] = 1
        return Slot(self, index)

    @property
    def is_idle(self) -> bool:
        return self.map.find(b"\1", 0, self.slots) < 0

    def on_opened(self) -> None:
        """Close the descriptor, which the receiver needed to open the slab."""
        if not self.is_open:
            self.is_open = True
            os.close(self.fd)

    def close(self) -> None:
        """Release the slab; its memory lives as long as a view of it."""
        if not self.is_open:
            os.close(self.fd)
        self.is_open = False


class Arena:
    """The slabs of a sending site for one receiving site."""

    def __init__(
        self, capacity_bytes: int, announce: Announce, retire: Callable[[int], None]
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.denied = 0  # payloads that found no free slot
        self._announce, self._retire = announce, retire
        self._by_slot_bytes: dict[int, list[Slab]] = {}
        self._next_number = 0

    def slabs(self) -> Iterator[Slab]:
        for slabs in self._by_slot_bytes.values():
            yield from slabs

    def reserve_slot(self, nbytes: int) -> Slot | None:
        """Return a slot for a payload, or None if none is free now."""
        slot_bytes = slot_size(nbytes)
        slabs = self._by_slot_bytes.setdefault(slot_bytes, [])
        if slot := _reserve_in(slabs):
            return slot
        if not slabs or slabs[-1].is_open:
            self._grow(slot_bytes, slabs)
        for larger, others in self._by_slot_bytes.items():
            if slot_bytes < larger <= 4 * slot_bytes and (slot := _reserve_in(others)):
                return slot
        self.denied += 1
        return None

    def _grow(self, slot_bytes: int, slabs: list[Slab]) -> None:
        """Double the number of slots of this size, if there is room."""
        most = min(MAX_SLAB_BYTES // slot_bytes, FLAGS_BYTES)
        slots = sum(slab.slots for slab in slabs) or FIRST_SLAB_BYTES // slot_bytes
        slots = max(min(slots, most), 1)
        if self.used_bytes + slots * slot_bytes > self.capacity_bytes:
            slots = 1
            self._make_room(slot_bytes)
        if self.used_bytes + slots * slot_bytes <= self.capacity_bytes:
            with suppress(OSError):  # out of memory: the payload goes through the socket
                slab = Slab(self._next_number, slot_bytes, slots)
                self._next_number += 1
                self.used_bytes += slab.nbytes
                slabs.append(slab)
                self._announce_slab(slab)

    def _make_room(self, nbytes: int) -> None:
        """Close idle slabs until there is room for `nbytes` more."""
        for slabs in self._by_slot_bytes.values():
            for slab in [s for s in slabs if s.is_open and s.is_idle]:
                if self.used_bytes + nbytes <= self.capacity_bytes:
                    return
                slabs.remove(slab)
                self._close_slab(slab)
                self._retire(slab.number)

    def _close_slab(self, slab: Slab) -> None:
        self.used_bytes -= slab.nbytes
        slab.close()

    def _announce_slab(self, slab: Slab) -> None:
        self._announce(slab.number, os.getpid(), slab.fd, slab.slot_bytes, slab.slots)

    def announce_again(self) -> None:
        """Repeat the announcements without an answer, as they may be lost."""
        for slab in self.slabs():
            if not slab.is_open:
                self._announce_slab(slab)

    def on_answer(self, number: int, opened: bool) -> None:
        """Handle the receiver's answer whether it could open a slab. If it could not, no more slabs are made."""
        for slabs in self._by_slot_bytes.values():
            for slab in slabs:
                if slab.number == number and not slab.is_open:
                    if opened:
                        slab.on_opened()
                    else:
                        slabs.remove(slab)
                        self._close_slab(slab)
                        self.capacity_bytes = 0
                    return

    def close(self) -> None:
        self.capacity_bytes = 0
        for slabs in self._by_slot_bytes.values():
            for slab in slabs:
                self._close_slab(slab)
            slabs.clear()


def _reserve_in(slabs: list[Slab]) -> Slot | None:
    for slab in slabs:
        if slab.is_open and (slot := slab.reserve_slot()) is not None:
            return slot
    return None


def slot_size(nbytes: int) -> int:
    """Return the slot size for a payload: whole pages, and four sizes per doubling, so that few slabs suffice."""
    step = max(4096, 1 << max(nbytes.bit_length() - 3, 0))
    return -(-nbytes // step) * step


# the receiving site


class _SlotView(weakref.ref[Any]):
    """A weak reference to the array on which all views of a slot are based. Its callback returns the slot."""

    __slots__ = ("flags", "slot")
    flags: mmap.mmap
    slot: int


def _return_slot(view: Any) -> None:
    """Mark the slot as free. The garbage collector may call this at any time, so it takes no lock."""
    view.flags[view.slot] = 0


class _PeerSlab:
    """The receiving site's mapping of a slab."""

    def __init__(self, pid: int, fd: int, slot_bytes: int, slots: int) -> None:
        if not 0 < slots <= FLAGS_BYTES or slot_bytes <= 0:
            raise RefusedMessage("slab")
        self.slot_bytes, self.slots = slot_bytes, slots
        nbytes = FLAGS_BYTES + slot_bytes * slots
        own_fd = _open_slab(pid, fd, nbytes)
        try:
            populate = getattr(mmap, "MAP_POPULATE", 0)
            shared = mmap.MAP_SHARED
            self.flags = mmap.mmap(own_fd, FLAGS_BYTES, flags=shared)
            self.memory = mmap.mmap(own_fd, nbytes, flags=shared | populate, prot=mmap.PROT_READ)
        finally:
            os.close(own_fd)
        self._views: list[_SlotView | None] = [None] * slots  # callbacks need living references

    def read_slot(self, slot: int, nbytes: int) -> Array:
        if not 0 <= slot < self.slots or not 0 < nbytes <= self.slot_bytes:
            raise RefusedMessage("slot")
        start = FLAGS_BYTES + slot * self.slot_bytes
        root: Array = np.frombuffer(self.memory, np.uint8, nbytes, start)
        view = _SlotView(root, _return_slot)
        view.flags, view.slot = self.flags, slot
        self._views[slot] = view
        return root


def _open_slab(pid: int, fd: int, nbytes: int) -> int:
    """Open another process's memory; raise `RefusedMessage` unless it is a sealed slab of this size."""
    path = f"/proc/{pid:d}/fd/{fd:d}"
    if not os.readlink(path).startswith(f"/memfd:{NAME_PREFIX}"):
        raise RefusedMessage("slab")
    own_fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(own_fd, fcntl.F_GET_SEALS) != SEALS or os.fstat(own_fd).st_size != nbytes:
            raise RefusedMessage("slab")
    except BaseException:
        os.close(own_fd)
        raise
    return own_fd


class PeerMemory:
    """All slabs of one sending site that the receiving site has open."""

    def __init__(self) -> None:
        self._slabs: dict[int, _PeerSlab] = {}

    def __len__(self) -> int:
        return len(self._slabs)

    def open(self, number: int, pid: int, fd: int, slot_bytes: int, slots: int) -> bool:
        """Open a slab; return whether that succeeded."""
        if number not in self._slabs:
            try:
                self._slabs[number] = _PeerSlab(pid, fd, slot_bytes, slots)
            except (OSError, ValueError, OverflowError):
                return False
        return True

    def read_slot(self, number: int, slot: int, nbytes: int) -> Array:
        """Return a read-only view of a slot. The slot becomes free when no view of it is left."""
        slab = self._slabs.get(number)
        if slab is None:
            raise RefusedMessage("slab")
        return slab.read_slot(slot, nbytes)

    def close_slab(self, number: int) -> None:
        """Release a slab; its memory lives as long as a view of it."""
        self._slabs.pop(number, None)

    def close(self) -> None:
        self._slabs.clear()
