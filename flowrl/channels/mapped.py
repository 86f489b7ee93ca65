"""Shared memory of another site: opened once, handed out as read-only arrays, given back with the last view."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from typing import Any

import numpy as np

from flowrl.channels.arena import FLAGS_BYTES, PREFIX, SEALS
from flowrl.channels.errors import RefusedMessage
from flowrl.core.batch import Array


class _Lease(weakref.ref[Any]):
    """Watches the array that all views of a slot stand on; with it the slot goes back."""

    __slots__ = ("flags", "slot")
    flags: mmap.mmap
    slot: int


def _give_back(lease: Any) -> None:
    """Runs wherever the last view dies: it writes one byte, and takes no lock."""
    lease.flags[lease.slot] = 0


class _Slab:
    """One shared memory of the other site."""

    def __init__(self, pid: int, fd: int, slot_bytes: int, slots: int) -> None:
        if not 0 < slots <= FLAGS_BYTES or slot_bytes <= 0:
            raise RefusedMessage("slab")
        self.slot_bytes, self.slots = slot_bytes, slots
        size = FLAGS_BYTES + slot_bytes * slots
        mine = _open(pid, fd, size)
        try:
            populate = getattr(mmap, "MAP_POPULATE", 0)
            shared = mmap.MAP_SHARED
            self.flags = mmap.mmap(mine, FLAGS_BYTES, flags=shared)
            self.memory = mmap.mmap(mine, size, flags=shared | populate, prot=mmap.PROT_READ)
        finally:
            os.close(mine)
        self.leases: list[_Lease | None] = [None] * slots  # a reference must live to be called

    def array(self, slot: int, nbytes: int) -> Array:
        if not 0 <= slot < self.slots or not 0 < nbytes <= self.slot_bytes:
            raise RefusedMessage("slot")
        begin = FLAGS_BYTES + slot * self.slot_bytes
        root: Array = np.frombuffer(self.memory, np.uint8, nbytes, begin)
        lease = _Lease(root, _give_back)
        lease.flags, lease.slot = self.flags, slot
        self.leases[slot] = lease
        return root


def _open(pid: int, fd: int, size: int) -> int:
    """Our descriptor of the other process's memory, if it is one of flowrl's, and cannot shrink under us."""
    path = f"/proc/{pid:d}/fd/{fd:d}"
    if not os.readlink(path).startswith(f"/memfd:{PREFIX}"):
        raise RefusedMessage("slab")
    mine = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(mine, fcntl.F_GET_SEALS) != SEALS or os.fstat(mine).st_size != size:
            raise RefusedMessage("slab")
    except BaseException:
        os.close(mine)
        raise
    return mine


class Mapped:
    """The slabs of one other site."""

    def __init__(self) -> None:
        self._slabs: dict[int, _Slab] = {}

    def open(self, number: int, pid: int, fd: int, slot_bytes: int, slots: int) -> bool:
        """Open a slab; whether that worked."""
        if number not in self._slabs:
            try:
                self._slabs[number] = _Slab(pid, fd, slot_bytes, slots)
            except (OSError, ValueError, OverflowError):
                return False
        return True

    def array(self, number: int, slot: int, nbytes: int) -> Array:
        """The bytes of a slot, read-only; the slot goes back when no view of them is left."""
        slab = self._slabs.get(number)
        if slab is None:
            raise RefusedMessage("slab")
        return slab.array(slot, nbytes)

    def forget(self, number: int) -> None:
        """Let go of a slab; its memory lives as long as a view of it."""
        self._slabs.pop(number, None)

    def close(self) -> None:
        """Let go of all."""
        self._slabs.clear()
