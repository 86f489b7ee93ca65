"""Notes which call of a user's code this process is in, in memory that is left when the call ends the process.

Only a fork that a function is called in (`forked_call`) has such memory. Elsewhere noting a call has no effect.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NOTE_BYTES = 4096
# When the call began, of the monotonic clock; the bytes of its text, 0 if there is none.
HEADER = struct.Struct("<dH")

_memory: mmap.mmap | None = None  # shared with the parent of this fork


@dataclass(frozen=True, slots=True)
class NotedCall:
    what: str
    begun_s: float


def share_notes(memory: mmap.mmap) -> None:
    """Note calls of this process in this memory from now on."""
    global _memory
    _memory = memory


@contextmanager
def noted_call(what: str) -> Iterator[None]:
    """Note that user's code runs, in words such as "env 'x' was being made"."""
    if _memory is None:
        yield
        return
    text = what.encode(errors="backslashreplace")[: NOTE_BYTES - HEADER.size]
    _memory[HEADER.size : HEADER.size + len(text)] = text
    _memory[: HEADER.size] = HEADER.pack(time.monotonic(), len(text))
    try:
        yield
    finally:
        _memory[: HEADER.size] = HEADER.pack(0.0, 0)


def read_note(memory: mmap.mmap) -> NotedCall | None:
    """The call that a process is in, or has ended in."""
    begun_s, length = HEADER.unpack(memory[: HEADER.size])
    if not length:
        return None
    text = memory[HEADER.size : HEADER.size + length]
    return NotedCall(text.decode(errors="replace"), begun_s)
