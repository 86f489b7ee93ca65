"""Starts a host on a machine that is reached by ssh. This text is sent there, so it needs nothing but Python.

Standard input goes on with one line of JSON, the orders, and with flowrl as a wheel if it is to be installed. Then it
stays open: it ends when the run or ssh is gone, and so does the host.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn

CANNOT_START = 78  # the exit status where another try is of no use; the last line says why
INSTALLING = "installing flowrl"  # how the line begins that is shown while a venv is made
INSTALLED = "installed"  # the file in a venv that is complete
PR_SET_PDEATHSIG = 1
POLL_S = 0.2
END_S = 3.0  # in which a command ends after SIGTERM
LAST_LINES = 3  # of a command that has failed are shown


class Cancelled(Exception):
    """Standard input has ended."""


def main() -> int:
    orders = json.loads(sys.stdin.buffer.readline())
    wheel = sys.stdin.buffer.read(orders["wheel_bytes"])
    try:
        python = installed_python(orders, wheel) if wheel else sys.executable
        host = [python, "-m", "flowrl", "host", "--join", "-", *orders["options"]]
        return watched(host, orders["join"].encode())
    except Cancelled:
        return 1


def fail(why: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(why + "\n")
    sys.exit(CANNOT_START)


def watched(words: Sequence[str], text: bytes = b"", output: IO[bytes] | None = None) -> int:
    """Execute a command, and end it when standard input ends; return its exit status."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(text)
    while process.poll() is None:
        if has_input_ended(POLL_S):
            end(process)
            raise Cancelled
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def has_input_ended(within_s: float) -> bool:
    """Wait for the end of standard input. Nothing else comes there any more."""
    readable, _, _ = select.select([0], [], [], within_s)
    return bool(readable) and os.read(0, 1) == b""


def end(process: subprocess.Popen[bytes]) -> None:
    """End a command and its children, first politely."""
    os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + END_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S / 4)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# a venv with flowrl


def installed_python(orders: dict[str, Any], wheel: bytes) -> str:
    """The Python of a venv that has exactly this wheel and these packages. It is made once."""
    packages = orders["packages"]
    content = hashlib.sha256(wheel)
    content.update(json.dumps([packages, sys.version, sys.prefix]).encode())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(cache, "flowrl", "venvs", content.hexdigest()[:16])
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(folder + ".lock", "w") as lock:  # the kernel lets go of it if this process dies
        if not lock_now(lock) and not os.path.exists(os.path.join(folder, INSTALLED)):
            print(f"{INSTALLING}: another host of this machine does it", flush=True)
        while not lock_now(lock):
            if has_input_ended(POLL_S):
                raise Cancelled
        if not os.path.exists(os.path.join(folder, INSTALLED)):
            make_venv(folder, orders["wheel"], wheel, packages)
    return os.path.join(folder, "bin", "python")


def lock_now(lock: IO[str]) -> bool:
    """Return whether the file is locked now by this process."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_venv(folder: str, name: str, wheel: bytes, packages: Sequence[str]) -> None:
    print(f"{INSTALLING} in {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        fail(
            f"{sys.executable} cannot make a venv; install its package for that, such as python3-venv"
        )
    checked("python -m venv", [sys.executable, "-m", "venv", folder])
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, name)
        with open(path, "wb") as file:
            file.write(wheel)
        pip = [os.path.join(folder, "bin", "python"), "-m", "pip", "--quiet", "--no-input"]
        pip += ["--disable-pip-version-check", "install", path]
        checked("pip install", [*pip, *packages])
    with open(os.path.join(folder, INSTALLED), "w"):
        pass


def checked(what: str, words: Sequence[str]) -> None:
    """Execute a command whose failure is the end."""
    with tempfile.TemporaryFile() as output:
        status = watched(words, output=output)
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").splitlines()
    if status != 0:
        last = [line.strip() for line in lines if line.strip()][-LAST_LINES:]
        fail(f"{what} failed: {' / '.join(last) or f'status {status}'}")


if __name__ == "__main__":
    sys.exit(main())
