"""A go-between for a socket, that can cut it: for real, with whatever is under way."""

from __future__ import annotations

import selectors
import socket
import threading
from pathlib import Path


class Proxy:
    """Listens beside the target's address and forwards both ways, in a thread of its own."""

    def __init__(self, target: str, folder: Path) -> None:
        self._target = target
        self._near = target.startswith("ipc:")
        self._listener = socket.socket(socket.AF_UNIX if self._near else socket.AF_INET)
        self._listener.bind(str(folder / "proxy") if self._near else ("127.0.0.1", 0))
        self._listener.listen()
        name = self._listener.getsockname()
        self.address = f"ipc://{name}" if self._near else f"tcp://127.0.0.1:{name[1]}"
        self.appetite = 0  # bytes to take and not forward, and then to cut
        self.swallowed = 0
        self.cuts = 0
        self._orders, self._ear = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Break all connections."""
        self._orders.send(b"cut")

    def close(self) -> None:
        """End."""
        self._orders.close()
        self._thread.join(5)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready, self._listener, self._ear:
            ready.register(self._listener, selectors.EVENT_READ)
            ready.register(self._ear, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is self._ear:
                        word = self._ear.recv(16)
                        self._hang_up(ready)
                        if not word:
                            return
                    elif key.fileobj is self._listener:
                        self._connect(ready)
                    elif key.fileobj.fileno() >= 0:
                        self._forward(ready, key)

    def _connect(self, ready: selectors.BaseSelector) -> None:
        one, _ = self._listener.accept()
        two = socket.socket(self._listener.family)
        path = self._target.removeprefix("ipc://")
        host, _, port = self._target.removeprefix("tcp://").rpartition(":")
        two.connect(path if self._near else (host, int(port)))
        ready.register(one, selectors.EVENT_READ, two)
        ready.register(two, selectors.EVENT_READ, one)

    def _forward(self, ready: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        try:
            data = key.fileobj.recv(1 << 16)
            if self.appetite > 0:
                self.appetite -= len(data)
                self.swallowed += len(data)
                if self.appetite <= 0:
                    return self._hang_up(ready)
            else:
                key.data.sendall(data)
        except OSError:
            data = b""
        if not data:
            for end in (key.fileobj, key.data):
                ready.unregister(end)
                end.close()

    def _hang_up(self, ready: selectors.BaseSelector) -> None:
        for key in list(ready.get_map().values()):
            if key.data is not None:
                ready.unregister(key.fileobj)
                key.fileobj.close()
                self.cuts += 1
