"""Writes a figure of matplotlib to a file, in the format of the file's ending."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flowrl.core.errors import RunError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg")


def check_ending(verb: str, path: Path) -> None:
    """Refuse a file whose ending names no format, before a figure is made for it."""
    if path.suffix not in ENDINGS:
        known = ", ".join(ENDINGS)
        raise UsageError(f"{verb}: {path}: unknown ending '{path.suffix}'; known: {known}")


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure. The same figure gives the same file."""
    from matplotlib import rc_context

    metadata = {"Date": None} if path.suffix == ".svg" else None
    try:
        with rc_context({"svg.hashsalt": "flowrl"}):
            figure.savefig(path, format=path.suffix.removeprefix("."), metadata=metadata)
    except OSError as error:
        why = error.strerror or error
        raise RunError(f"{path}: cannot be written: {why}; give another file by -o") from None
