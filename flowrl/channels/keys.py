"""CURVE keys of sites, and key files.

In a run over several machines, each site has a pair of keys that is made for the run. A key file holds one pair,
which all machines of a cluster share.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from flowrl.core.errors import UsageError

KEY_COMMENT = (
    "# a flowrl key: everybody who has this file may join runs, and run code on hosts that use it"
)
HOW_TO_MAKE = "make one with 'flowrl host --new-key FILE', and copy it to every machine of the run"
KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """A site's own pair of keys, and the public keys of its peers, as Z85 text."""

    public: bytes
    secret: bytes = field(repr=False)
    known: Mapping[str, bytes] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        known = {name: key.decode() for name, key in self.known.items()}
        return {"public": self.public.decode(), "secret": self.secret.decode(), "known": known}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Keys:
        known = {name: key.encode() for name, key in data["known"].items()}
        return cls(data["public"].encode(), data["secret"].encode(), known)


def new_pair() -> tuple[bytes, bytes]:
    """Return a new public and secret key."""
    public, secret = zmq.curve_keypair()
    return public, secret


def write_key(path: Path) -> None:
    """Write a new key into a file that only its owner can read."""
    public, secret = new_pair()
    text = f"{KEY_COMMENT}\npublic: {public.decode()}\nsecret: {secret.decode()}\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(
            f"--new-key {path}: the file exists already; use it, or choose another name"
        ) from None
    except OSError as error:
        raise UsageError(f"--new-key {path}: cannot be written: {error.strerror}") from None
    with os.fdopen(file, "w") as key:
        key.write(text)


def read_key(path: Path) -> Keys:
    """Return the key in a file; refuse a file that other users can read."""
    try:
        with path.open(encoding="ascii") as file:
            others = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            lines = file.read(1 << 16).splitlines()
    except OSError as error:
        raise UsageError(f"--key {path}: cannot be read: {error.strerror}; {HOW_TO_MAKE}") from None
    except UnicodeError:
        lines, others = [], 0
    if others:
        raise UsageError(
            f"--key {path}: others can read the file; make it secret with 'chmod 600 {path}'"
        )
    pairs = [line.partition(": ") for line in lines if not line.startswith("#")]
    found = {name: value for name, _, value in pairs}
    keys = keys_of(found.pop("public", None), found.pop("secret", None))
    if keys is None or found:
        raise UsageError(f"--key {path}: the file holds no valid key; {HOW_TO_MAKE}")
    return keys


def keys_of(public: Any, secret: Any) -> Keys | None:
    """Return the pair of keys that two texts are; None unless both are keys."""
    if not (_is_key(public) and _is_key(secret)):
        return None
    return Keys(public.encode(), secret.encode())


def _is_key(text: Any) -> bool:
    try:
        return isinstance(text, str) and len(z85.decode(text.encode())) == KEY_BYTES
    except (ValueError, KeyError):
        return False
