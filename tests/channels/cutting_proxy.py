"""A proxy for a socket that can cut its connections, and lose the bytes in flight."""

from __future__ import annotations

import selectors
import socket
import threading
from pathlib import Path


class CuttingProxy:
    """Listens beside the target's address and forwards both ways, in a thread of its own."""

    def __init__(self, target: str, folder: Path) -> None:
        self._target = target
        self._is_unix = target.startswith("ipc:")
        self._listener = socket.socket(socket.AF_UNIX if self._is_unix else socket.AF_INET)
        self._listener.bind(str(folder / "proxy") if self._is_unix else ("127.0.0.1", 0))
        self._listener.listen()
        name = self._listener.getsockname()
        self.address = f"ipc://{name}" if self._is_unix else f"tcp://127.0.0.1:{name[1]}"
        self.bytes_to_swallow = (
            0  # bytes to receive and not forward, before all connections are cut
        )
        self.swallowed = 0
        self.cuts = 0
        self._commands, self._command_socket = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Break all connections."""
        self._commands.send(b"cut")

    def close(self) -> None:
        """Stop the thread and close all connections."""
        self._commands.close()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready, self._listener, self._command_socket:
            ready.register(self._listener, selectors.EVENT_READ)
            ready.register(self._command_socket, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is self._command_socket:
                        command = self._command_socket.recv(16)
                        self._cut_all(ready)
                        if not command:
                            return
                    elif key.fileobj is self._listener:
                        self._connect(ready)
                    elif key.fileobj.fileno() >= 0:
                        self._forward(ready, key)

    def _connect(self, ready: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(self._listener.family)
        path = self._target.removeprefix("ipc://")
        host, _, port = self._target.removeprefix("tcp://").rpartition(":")
        server.connect(path if self._is_unix else (host, int(port)))
        ready.register(client, selectors.EVENT_READ, server)
        ready.register(server, selectors.EVENT_READ, client)

    def _forward(self, ready: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        try:
            data = key.fileobj.recv(1 << 16)
            if self.bytes_to_swallow > 0:
                self.bytes_to_swallow -= len(data)
                self.swallowed += len(data)
                if self.bytes_to_swallow <= 0:
                    return self._cut_all(ready)
            else:
                key.data.sendall(data)
        except OSError:
            data = b""
        if not data:
            for end in (key.fileobj, key.data):
                ready.unregister(end)
                end.close()

    def _cut_all(self, ready: selectors.BaseSelector) -> None:
        for key in list(ready.get_map().values()):
            if key.data is not None:
                ready.unregister(key.fileobj)
                key.fileobj.close()
                self.cuts += 1
