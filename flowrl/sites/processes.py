"""The processes of sites on this machine: starting them, why they ended, ending them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from flowrl.errors import UsageError

Process = subprocess.Popen[bytes]
STDERR = 2


def start_process(
    told: Mapping[str, Any], output: int = STDERR, door: socket.socket | None = None
) -> Process:
    """A process with one site.

    `door` is where other machines reach it. `output`: what a node prints must not get into the one line that
    `run --json` prints.
    """
    words = {**told, "parent": os.getpid(), "door": door.fileno() if door else None}
    process = subprocess.Popen(
        [sys.executable, "-m", "flowrl.sites.child"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=None if output == STDERR else subprocess.STDOUT,
        pass_fds=[door.fileno()] if door else [],
    )
    if door:
        door.close()  # it is the child's
    assert process.stdin is not None
    process.stdin.write(json.dumps(words).encode())
    process.stdin.close()
    return process


def door_at(host: str) -> tuple[socket.socket, int]:
    """A socket that listens already, for a site that is not there yet, and its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        door = socket.create_server((host, 0), family=family, backlog=1024)
    except OSError as error:
        raise UsageError(f"{host}: cannot listen: {error.strerror}") from None
    return door, int(door.getsockname()[1])


def why_ended(code: int) -> str:
    """What a process's status says."""
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"


def end(process: Process, deadline: float) -> None:
    """Wait a little, then be less polite."""
    for ask in (None, process.terminate, process.kill):
        if ask is not None:
            ask()
        try:
            process.wait(max(deadline - time.monotonic(), 0.2))
            return
        except subprocess.TimeoutExpired:
            continue
    process.wait()
