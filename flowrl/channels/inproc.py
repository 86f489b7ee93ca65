"""The transport between threads of one process: values are passed by reference."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flowrl.channels.messages import TOKEN_REFERENCE, Frame
from flowrl.channels.transport import Connection, Received, SiteSettings
from flowrl.channels.wire_format import AS_IT_IS, WireFormat
from flowrl.core.batch import Batch
from flowrl.core.errors import UsageError
from flowrl.core.state import Clock, State

SCHEME = "inproc://"


class Inbox:
    """A queue of frames from other threads, with a pipe that becomes readable to wake the sleeping owner."""

    def __init__(self) -> None:
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)
        self._received: deque[tuple[str, Frame]] = deque()
        self._sleeping = self._woken = self._closed = False
        self._wake_lock = threading.Lock()  # no thread may write to a closed pipe

    def put(self, sender: str, frame: Frame) -> None:
        """Append a frame, from any thread."""
        self._received.append((sender, frame))
        if self._sleeping:
            self._wake()

    def _wake(self) -> None:
        with self._wake_lock:
            if self._sleeping and not self._closed:
                self._sleeping, self._woken = False, True
                os.write(self._write_fd, b"\0")

    def prepare_to_sleep(self) -> bool:
        """Return whether the owner may sleep: nothing is queued, and the next `put` will wake it."""
        self._sleeping = True  # set before the queue is checked: a later `put` sees it
        return not self._received

    def take_all(self) -> Received:
        """Remove and return all frames."""
        self._sleeping = False
        if self._woken:
            with self._wake_lock:
                os.read(self.wake_fd, 64)
                self._woken = False
        received = self._received
        return [received.popleft() for _ in range(len(received))]

    def close(self) -> None:
        with self._wake_lock:
            self._closed = True
            os.close(self.wake_fd)
            os.close(self._write_fd)


# The inboxes of all sites of a process, by site.
InboxRegistry = dict[str, Inbox]


class ReferenceFrame:
    """A frame for another thread."""

    __slots__ = ("frame", "nbytes")
    wire_bytes = 0  # it is not in a message

    def __init__(self, frame: Frame, nbytes: int) -> None:
        self.frame, self.nbytes = frame, nbytes

    def release(self) -> None:
        """Do nothing: no memory was reserved."""


class InprocConnection(Connection[ReferenceFrame]):
    """The connection to a site in this process."""

    def __init__(self, site: str, inbox: Inbox) -> None:
        super().__init__()
        self._site, self._inbox = site, inbox

    def pack_token(
        self,
        channel: str,
        epoch: int,
        number: int,
        clock: Clock | None,
        value: Any,
        wire: WireFormat = AS_IT_IS,
    ) -> ReferenceFrame:
        nbytes = size_bytes(value)
        frame = [TOKEN_REFERENCE, channel, epoch, number, clock, value, nbytes]
        return ReferenceFrame(frame, nbytes)

    def pack_frame(self, *frame: Any) -> ReferenceFrame:
        return ReferenceFrame(list(frame), 0)

    def send(self, packed: ReferenceFrame) -> None:
        self._inbox.put(self._site, packed.frame)

    def send_frame(self, *frame: Any) -> None:
        self._inbox.put(self._site, list(frame))


class InprocTransport:
    """Looks up the inboxes of other sites. The site's own inbox is polled by its `SiteConnections`."""

    def __init__(self, settings: SiteSettings) -> None:
        self._site, self._inboxes = settings.site, settings.inboxes

    def listen(self, address: str, listening_fd: int | None = None) -> str:
        if address != SCHEME + self._site:
            raise UsageError(f"{address}: a site in a process is addressed as {SCHEME}{self._site}")
        return address

    def connect(self, peer: str, address: str, epoch: int = 0) -> InprocConnection:
        return InprocConnection(self._site, self._inboxes[address.removeprefix(SCHEME)])

    def disconnect(self, peer: str) -> None:
        """Do nothing: the transport keeps nothing for a peer."""

    def readers(self) -> Mapping[Any, Callable[[], Received]]:
        return {}

    def lost_connections(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: the transport holds no resources."""


def size_bytes(value: object) -> int:
    """Return about how much memory the arrays, strings and bytes of a value take."""
    if isinstance(value, Batch | np.ndarray):
        return value.nbytes
    if isinstance(value, State):
        return sum(array.nbytes for array in value.arrays.values())
    if isinstance(value, list | tuple):
        return sum(map(size_bytes, value))
    if isinstance(value, dict):
        return sum(map(size_bytes, value.values()))
    return len(value) if isinstance(value, str | bytes) else 8
