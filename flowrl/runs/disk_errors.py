"""Errors of the disk, with a remedy."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from flowrl.core.errors import RunError


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Raise a `RunError` that names a remedy where writing below `path` fails."""
    try:
        yield
    except OSError as error:
        what = f"{path}: cannot be written: {error.strerror or error}"
        if error.errno in (errno.EMFILE, errno.ENFILE):  # those of this process, or of the system
            raise RunError(f"{what}; raise the limit of open files (ulimit -n)") from error
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free some space" if is_full else "fix this"
        raise RunError(f"{what}; {remedy}, or choose another --out") from error
