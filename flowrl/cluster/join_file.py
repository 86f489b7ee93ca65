"""Join files: how a host finds its run. Their text can also come from standard input or the environment.

A join file holds the run's address, its identity and its key, so its owner alone may read it. A run writes `join.json`
into its folder. A file that was there before is replaced, and no reader ever finds half of a file.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.cluster.rendezvous import address_with_key, read_optional_key
from flowrl.core.errors import FlowError, UsageError
from flowrl.core.json_text import parse_object

if TYPE_CHECKING:
    from flowrl.channels.keys import Keys

JOIN_FILE = "join.json"
JOIN_VARIABLE = "FLOWRL_JOIN"  # the environment variable that may hold the text of a join file
MAX_BYTES = 1 << 16
EXPECTED = "expected a join file, which a run writes into its folder"


class RunHasEnded(FlowError):
    """The run of a join file has ended."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Which run it is, and how many times it was started before: a run that is resumed keeps its name."""

    run: str
    epoch: int

    def refusal_of(self, other: RunIdentity) -> str:
        """Return why a host that was started for the other one must not take part; nothing if it may."""
        if other.run != self.run:
            return f"it was started for another run ({other.run}; this is {self.run})"
        if other.epoch != self.epoch:
            return (
                f"it was started for epoch {other.epoch} of this run, which is in epoch {self.epoch} "
                "since it was resumed"
            )
        return ""


@dataclass(frozen=True, slots=True)
class JoinInfo:
    """What a host needs to know of its run. The identity is unknown if a person has typed the address."""

    address: str  # tcp://ADDRESS:PORT
    identity: RunIdentity | None = None
    keys: Keys | None = field(default=None, repr=False)

    def text(self) -> str:
        """The text of the join file."""
        known: dict[str, Any] = {"address": self.address}
        if self.identity is not None:
            known |= {"run": self.identity.run, "epoch": self.identity.epoch}
        if self.keys is not None:
            known |= {"public": self.keys.public.decode(), "secret": self.keys.secret.decode()}
        return json.dumps(known) + "\n"


def write_join_file(path: Path, info: JoinInfo) -> None:
    """Write a join file that only its owner can read."""
    _write_secret(path, info.text())


def write_end(path: Path, identity: RunIdentity) -> None:
    """Put into a join file, instead of the address and the key, that the run has ended."""
    _write_secret(path, json.dumps({"run": identity.run, "epoch": identity.epoch, "ended": True}))


def _write_secret(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def earlier_identity(path: Path) -> RunIdentity | None:
    """The identity in a join file that an earlier start of the run has left; None if there is none."""
    try:
        found = parse_object(path.read_bytes()[:MAX_BYTES])
        return RunIdentity(str(found["run"]), int(found["epoch"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class JoinSource:
    """Finds a run again each time that it is called. It returns None while the join file is not there yet."""

    find: Callable[[], JoinInfo | None]
    file: Path | None = None

    def __call__(self) -> JoinInfo | None:
        return self.find()


def join_source(given: str | None, key: Path | None) -> JoinSource:
    """Return how a host finds its run: by an address, a join file, `-` for standard input, or the environment."""
    if given is None:
        text = os.environ.get(JOIN_VARIABLE)
        if text is None:
            raise UsageError(
                "host: give --join tcp://ADDRESS:PORT, where the run listens, or --join FILE, "
                f"its {JOIN_FILE}; or --new-key FILE"
            )
        return _constant(parse_join_text(text, f"${JOIN_VARIABLE}"), key)
    if given == "-":
        return _constant(parse_join_text(sys.stdin.read(MAX_BYTES), "--join -"), key)
    path = Path(given)
    is_path = path.suffix == ".json" or "/" in given or path.exists()
    if "://" in given or not is_path:  # a misspelt address is not waited for, as a file is
        return _constant(JoinInfo(given), key)
    read_join_file(path)  # a file that is no join file is reported at once
    return JoinSource(lambda: _with_key(read_join_file(path), key), path)


def _constant(info: JoinInfo, key: Path | None) -> JoinSource:
    found = _with_key(info, key)
    return JoinSource(lambda: found)


def _with_key(info: JoinInfo | None, key: Path | None) -> JoinInfo | None:
    """The run with the key of `--key`, if it is given, and without a key only where none is needed."""
    if info is None:
        return None
    keys = info.keys if key is None else read_optional_key(key)
    address_with_key(info.address, keys is not None, "--join")
    return JoinInfo(info.address, info.identity, keys)


def read_join_file(path: Path) -> JoinInfo | None:
    """Read a join file; return None if it does not exist."""
    where = f"--join {path}"
    try:
        with path.open("rb") as file:
            others = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077
            text = file.read(MAX_BYTES)
    except FileNotFoundError:
        if path.parent.is_dir():
            return None
        raise UsageError(f"{where}: there is no folder {path.parent}; {EXPECTED}") from None
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror}") from None
    info = parse_join_text(text, where)
    if others and info.keys is not None:
        raise UsageError(
            f"{where}: others can read the file, which holds a key; make it secret with 'chmod 600 {path}'"
        )
    return info


def parse_join_text(text: bytes | str, where: str) -> JoinInfo:
    """Parse the text of a join file. Raises `RunHasEnded` if it says so."""
    try:
        found = parse_object(text)
    except ValueError:
        raise UsageError(f"{where}: it is not JSON; {EXPECTED}") from None
    if found.get("ended") is True:
        raise RunHasEnded(f"{where}: the run has ended")
    address, run, epoch = found.get("address"), found.get("run"), found.get("epoch")
    if not isinstance(address, str):
        raise UsageError(f"{where}: it has no address; {EXPECTED}")
    identity = None
    if isinstance(run, str) and isinstance(epoch, int):
        identity = RunIdentity(run, epoch)
    return JoinInfo(address, identity, _keys(found, where))


def _keys(found: dict[str, Any], where: str) -> Keys | None:
    from flowrl.channels.keys import keys_of  # imported late, as it loads ZeroMQ

    if "public" not in found and "secret" not in found:
        return None
    keys = keys_of(found.get("public"), found.get("secret"))
    if keys is None:
        raise UsageError(f"{where}: it holds no valid key; {EXPECTED}")
    return keys
