"""A site's mailbox: all that comes to one thread, from threads, processes and hosts, and the ways to them.

A site is addressed by how it is reached: `thread:name` in this process, `ipc://path` on this host, `tcp://host:port`
on the network.
"""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowrl.channels.inbox import Inbox, ThreadPost
from flowrl.channels.items import ASIDE, Item
from flowrl.channels.statistics import SiteTraffic
from flowrl.channels.transport import Connection

if TYPE_CHECKING:
    from flowrl.channels.keys import Keys
    from flowrl.channels.sockets import Sockets

InboxRegistry = dict[str, Inbox]  # the sites of a process, by name; one for each process


class SiteConnections:
    """Owned by one thread. `poll` is its only wait."""

    def __init__(
        self,
        name: str,
        run: bytes = b"",
        threads: InboxRegistry | None = None,
        *,
        keys: Keys | None = None,
        limit_bytes: int = 1 << 30,
        shared_bytes: int = 256 << 20,
    ) -> None:
        """`run`: the run's own secret, in every message; `limit_bytes`: the largest token; `shared_bytes`: of shared
        memory, held for each site on this host."""
        self.name = name
        self.posts: dict[str, Connection[Any]] = {}
        self._inbox = Inbox()
        self._threads = {} if threads is None else threads
        self._threads[name] = self._inbox
        self._refused: Counter[tuple[str, str]] = Counter()
        self._settings = (run, name, keys, limit_bytes, shared_bytes, self.refuse)
        self._sockets: Sockets | None = None
        self._watched: list[int] = []
        self._poller: Any = select.poll()
        self._poller.register(self._inbox.wake_fd, select.POLLIN)

    @property
    def address(self) -> str:
        """Where threads of this process reach the site."""
        return f"thread:{self.name}"

    def _socketed(self) -> Sockets:
        """The sockets, made when the first is needed: a site among threads has none."""
        if self._sockets is None:
            import zmq

            from flowrl.channels.sockets import Sockets

            self._sockets = Sockets(*self._settings)
            self._poller = zmq.Poller()
            for fd in (self._inbox.wake_fd, *self._watched):
                self._poller.register(fd, zmq.POLLIN)
        return self._sockets

    def listen(self, address: str, listening_fd: int | None = None) -> str:
        """Be reachable at `ipc://path` or `tcp://host:port` too; the address to tell others (port `*`: any).

        `listening_fd`: a descriptor that listens there already.
        """
        sockets = self._socketed()
        bound = sockets.listen(address, listening_fd)
        sockets.watch(self._poller.register)
        return bound

    def connect(self, peer: str, address: str) -> Connection[Any]:
        """Know another site, and where it is; its mail is taken in from now on."""
        if peer in self.posts:
            self.disconnect(peer)
        if address.startswith("thread:"):
            post: Connection[Any] = ThreadPost(
                self.name, self._threads[address.removeprefix("thread:")]
            )
        else:
            post = self._socketed().connect(peer, address)
        self.posts[peer] = post
        return post

    def disconnect(self, peer: str) -> None:
        """Know a site no more; what it was not sent yet is dropped."""
        self.posts.pop(peer).close(drop=True)
        if self._sockets:
            self._sockets.disconnect(peer)

    def send_out_of_band(self, peer: str, text: str) -> None:
        """Send a text that belongs to no channel; this never blocks."""
        self.posts[peer].say(ASIDE, text)

    def flush(self) -> None:
        """Send what was gathered."""
        for post in self.posts.values():
            post.flush()

    def settle(self) -> None:
        """Send what was gathered, and all credits."""
        for post in self.posts.values():
            post.settle()

    def poll(self, timeout_s: float = 0.0) -> list[tuple[str, Item]]:
        """Some of what has come, as pairs of site and item; waits for something if nothing is here."""
        timeout_ms = 0
        if timeout_s > 0 and self._inbox.falls_asleep():
            timeout_ms = int(timeout_s * 1000) + 1
        ready = self._poller.poll(timeout_ms) if self._sockets or timeout_ms else []
        mail = self._inbox.take()
        if self._sockets and ready:
            mail += self._sockets.receive(ready)
        return mail

    @contextmanager
    def wake_on(self, fds: Collection[int]) -> Iterator[None]:
        """Meanwhile `poll` waits for these descriptors, too: not when they can be read already."""
        self._watched = [*fds]
        for fd in fds:
            self._poller.register(fd, select.POLLIN)
        try:
            yield
        finally:
            self._watched = []
            for fd in fds:
                self._poller.unregister(fd)

    def refuse(self, reason: str, peer: str) -> None:
        """Count what was refused."""
        self._refused[reason, peer] += 1

    def close(self, drop: bool = False) -> None:
        """Close; what was sent may take a second to leave, unless it is to be dropped."""
        if self._threads.get(self.name) is self._inbox:
            del self._threads[self.name]
        for post in self.posts.values():
            post.close(drop)
        if self._sockets:
            self._sockets.close()
        self._inbox.close()

    def statistics(self) -> SiteTraffic:
        """Counts so far."""
        posts = [post.statistics() for post in self.posts.values()]
        sockets = self._sockets
        if sockets:
            sockets.look()
        return SiteTraffic(
            messages_sent=sum(post.messages for post in posts),
            messages_received=sockets.messages if sockets else 0,
            bytes_sent=sum(post.bytes for post in posts),
            bytes_received=sockets.bytes if sockets else 0,
            shared_tokens=sum(post.shared_tokens for post in posts),
            shared_bytes=sum(post.shared_bytes for post in posts),
            not_shared=sum(post.not_shared for post in posts),
            cuts=sockets.cuts if sockets else 0,
            refused=dict(self._refused),
        )
