"""Key files: one pair of CURVE keys, which all machines of a cluster have, and nobody else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from zmq.utils import z85

from flowrl.channels.keys import Keys, new_pair
from flowrl.core.errors import UsageError

ABOUT = (
    "# a flowrl key: whoever has this file may join runs, and run code on hosts that wait with it"
)
MAKE = "make one with 'flowrl host --new-key FILE', and copy it to every machine of the run"
KEY_BYTES = 32


def write_key(path: Path) -> None:
    """Make a new key; only its owner can read it."""
    public, secret = new_pair()
    text = f"{ABOUT}\npublic: {public.decode()}\nsecret: {secret.decode()}\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        what = f"--new-key {path}: there is such a file already"
        raise UsageError(f"{what}; use that one, or give another name") from None
    except OSError as error:
        raise UsageError(f"--new-key {path}: cannot be written: {error.strerror}") from None
    with os.fdopen(file, "w") as key:
        key.write(text)


def read_key(path: Path) -> Keys:
    """The key in a file that nobody else can read."""
    try:
        with path.open(encoding="ascii") as file:
            others = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            lines = file.read(1 << 16).splitlines()
    except OSError as error:
        raise UsageError(f"--key {path}: cannot be read: {error.strerror}; {MAKE}") from None
    except UnicodeError:
        lines, others = [], 0
    if others:
        raise UsageError(f"--key {path}: others can read it; 'chmod 600 {path}' keeps it secret")
    pairs = [line.partition(": ") for line in lines if not line.startswith("#")]
    found = {name: value.encode() for name, _, value in pairs}
    if set(found) != {"public", "secret"} or not all(map(_is_key, found.values())):
        raise UsageError(f"--key {path}: there is no key in it; {MAKE}")
    return Keys(found["public"], found["secret"])


def _is_key(text: bytes) -> bool:
    try:
        return len(z85.decode(text)) == KEY_BYTES
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
