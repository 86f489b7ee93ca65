"""The actor that holds a host on a machine of a Ray cluster, and the process that becomes the host."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flowrl.machine.child_process import ChildProcess, begin_child, exit_text

LOG_BYTES = 1 << 18  # of what a host has printed, in one answer


class HostActor:
    """Holds a host, which ends with the actor. Ray makes the actor again on another machine if its own is lost."""

    def __init__(self, join: str, options: Sequence[str]) -> None:
        self._config = {"join": join, "options": list(options)}
        self._folder = tempfile.TemporaryDirectory(prefix="flowrl-host-")
        self._path = Path(self._folder.name) / "log"
        self._read_bytes = 0
        self._process: ChildProcess | None = None
        self.start_host()

    def start_host(self) -> None:
        """Start the host, which may have ended before."""
        if self._process is not None:
            self._process.kill()
        with self._path.open("ab") as log:
            module = "flowrl.cluster.ray.host_actor"
            self._process = ChildProcess(module, self._config, output=log)

    def take_report(self) -> tuple[str, bool, str]:
        """How the host has ended, whether it ended well, and what it printed since the last report."""
        assert self._process is not None
        status = self._process.exit_status()
        with self._path.open("rb") as log:
            log.seek(self._read_bytes)
            text = log.read(LOG_BYTES)
        self._read_bytes += len(text)
        end = "" if status is None else exit_text(status)
        return end, status == 0, text.decode(errors="replace")

    def end_host(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._folder.cleanup()


def become_host() -> None:
    """Replace this process by `flowrl host`. What ties it to the actor's process remains."""
    config = begin_child()
    reader, writer = os.pipe()
    os.write(writer, config["join"].encode())
    os.close(writer)
    os.dup2(reader, 0)
    os.execv(
        sys.executable,
        [sys.executable, "-m", "flowrl", "host", "--join", "-", *config["options"]],
    )


if __name__ == "__main__":
    become_host()
