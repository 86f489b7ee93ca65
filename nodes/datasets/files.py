"""Tables in files: the ending of a name says the format."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from flowrl.core.batch import Batch, Schema
from flowrl.nodes.datasets import hdf5, minari, npz
from flowrl.nodes.datasets.about import NOTHING, About


class Format(Protocol):
    """How tables are kept in files of a kind."""

    def read_schema(self, path: Path) -> tuple[Schema, int]:
        """The columns and the number of rows."""

    def about_of(self, path: Path) -> About:
        """What the file says beside its arrays."""

    def read(self, path: Path, rows: int | None = None) -> Batch:
        """The table, or its first rows."""

    def write(self, path: Path, table: Batch, about: About = NOTHING) -> None:
        """The table, whole or not at all."""


def format_of(path: Path) -> Format:
    """HDF5 by its endings, a Minari folder by its version (`expert-v0`), else NPZ."""
    if minari.NAME.match(path.name):
        return cast(Format, minari)
    return cast(Format, hdf5 if path.suffix in hdf5.ENDINGS else npz)
