"""Shared memory for sending: slabs of equal slots. One copy in, none out.

A slab is a memfd: it has no name, so nothing can stay behind, however its users end, and a small /dev/shm is no
limit. Its first page holds a byte for each slot: 1 while the slot is taken. The sending site sets the byte, and the
receiving site clears it when the last view of the slot is gone, so that the way back costs no message. The other
site opens a slab through /proc; until it has said that it could, nothing is sent in it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from flowrl.core.batch import Array

FLAGS_BYTES = 4096  # the first page: one byte a slot
SLAB_BYTES = 64 << 20  # slots are added by doubling, up to slabs of this size
FIRST_BYTES = 1 << 20  # the first slab of a size
PREFIX = "flowrl-"  # of the memory's name in /proc
SEALS = 0x1 | 0x2 | 0x4  # F_SEAL_SEAL, SHRINK, GROW: no size can change under who has it open

Announce = Callable[[int, int, int, int, int], None]  # number, pid, fd, slot_bytes, slots


def can_share() -> bool:
    """Whether this system has memory to share by file descriptor."""
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Slot:
    """A place in a slab: where to copy to, and what to tell the receiver."""

    __slots__ = ("index", "slab")

    def __init__(self, slab: Slab, index: int) -> None:
        self.slab, self.index = slab, index

    @property
    def memory(self) -> Array:
        """Its bytes."""
        slab = self.slab
        begin = FLAGS_BYTES + self.index * slab.slot_bytes
        return np.frombuffer(slab.map, np.uint8, slab.slot_bytes, begin)

    def free(self) -> None:
        """Take it back."""
        self.slab.map[self.index] = 0


class Slab:
    """Equal slots in one shared memory."""

    def __init__(self, number: int, slot_bytes: int, slots: int) -> None:
        self.number, self.slot_bytes, self.slots = number, slot_bytes, slots
        self.nbytes = FLAGS_BYTES + slot_bytes * slots
        self.open = False  # the receiver has it
        self.fd = os.memfd_create(f"{PREFIX}{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, self.nbytes)  # an error now, not a signal later
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self.map = mmap.mmap(self.fd, self.nbytes, flags=flags)
        except OSError:
            os.close(self.fd)
            raise

    def take(self) -> Slot | None:
        """The first free slot: the one most likely to be in the processor's cache."""
        index = self.map.find(b"\0", 0, self.slots)
        if index < 0:
            return None
        self.map[index] = 1
        return Slot(self, index)

    @property
    def idle(self) -> bool:
        """Whether no slot is taken."""
        return self.map.find(b"\1", 0, self.slots) < 0

    def opened(self) -> None:
        """The receiver has it: the descriptor has done its service."""
        if not self.open:
            self.open = True
            os.close(self.fd)

    def drop(self) -> None:
        """Let go; the memory lives as long as a view of it."""
        if not self.open:
            os.close(self.fd)
        self.open = False


class Arena:
    """The slabs for one receiving site."""

    def __init__(
        self, capacity_bytes: int, announce: Announce, forget: Callable[[int], None]
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.denied = 0  # slots that were asked for in vain
        self._announce, self._forget = announce, forget
        self._classes: dict[int, list[Slab]] = {}
        self._number = 0

    def take(self, nbytes: int) -> Slot | None:
        """A slot for so many bytes; None if there is none now: send it another way."""
        slot_bytes = slot_size(nbytes)
        slabs = self._classes.setdefault(slot_bytes, [])
        if slot := _free_slot(slabs):
            return slot
        if not slabs or slabs[-1].open:
            self._grow(slot_bytes, slabs)
        for larger, others in self._classes.items():
            if slot_bytes < larger <= 4 * slot_bytes and (slot := _free_slot(others)):
                return slot
        self.denied += 1
        return None

    def _grow(self, slot_bytes: int, slabs: list[Slab]) -> None:
        """Add a slab as large as all there are of its class, where there is room for it."""
        most = min(SLAB_BYTES // slot_bytes, FLAGS_BYTES)
        slots = sum(slab.slots for slab in slabs) or FIRST_BYTES // slot_bytes
        slots = max(min(slots, most), 1)
        if self.used_bytes + slots * slot_bytes > self.capacity_bytes:
            slots = 1
            self._make_room(slot_bytes)
        if self.used_bytes + slots * slot_bytes <= self.capacity_bytes:
            with suppress(OSError):  # no memory is no harm: counted, and sent another way
                slab = Slab(self._number, slot_bytes, slots)
                self._number += 1
                self.used_bytes += slab.nbytes
                slabs.append(slab)
                self.announce(slab)

    def _make_room(self, nbytes: int) -> None:
        """Give up idle slabs until there is room for so many bytes more."""
        for slabs in self._classes.values():
            for slab in [s for s in slabs if s.open and s.idle]:
                if self.used_bytes + nbytes <= self.capacity_bytes:
                    return
                slabs.remove(slab)
                self._let_go(slab)
                self._forget(slab.number)

    def _let_go(self, slab: Slab) -> None:
        self.used_bytes -= slab.nbytes
        slab.drop()

    def announce(self, slab: Slab) -> None:
        """Tell the receiver where to find it."""
        self._announce(slab.number, os.getpid(), slab.fd, slab.slot_bytes, slab.slots)

    def announce_again(self) -> None:
        """Repeat what may be lost."""
        for slabs in self._classes.values():
            for slab in slabs:
                if not slab.open:
                    self.announce(slab)

    def opened(self, number: int, worked: bool) -> None:
        """The receiver says whether it could open a slab; if not, there will be no more of them."""
        for slabs in self._classes.values():
            for slab in slabs:
                if slab.number == number and not slab.open:
                    if worked:
                        slab.opened()
                    else:
                        slabs.remove(slab)
                        self._let_go(slab)
                        self.capacity_bytes = 0
                    return

    def close(self) -> None:
        """Let go of everything."""
        self.capacity_bytes = 0
        for slabs in self._classes.values():
            for slab in slabs:
                self._let_go(slab)
            slabs.clear()


def _free_slot(slabs: list[Slab]) -> Slot | None:
    for slab in slabs:
        if slab.open and (slot := slab.take()) is not None:
            return slot
    return None


def slot_size(nbytes: int) -> int:
    """The slot for a payload: whole pages, four sizes to each doubling, so that few slabs serve all."""
    step = max(4096, 1 << max(nbytes.bit_length() - 3, 0))
    return -(-nbytes // step) * step
