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
        remedy = "free some space" if error.errno == errno.ENOSPC else "fix this"
        why = error.strerror or str(error)
        raise RunError(
            f"{path}: cannot be written: {why}; {remedy}, or choose another --out"
        ) from error
