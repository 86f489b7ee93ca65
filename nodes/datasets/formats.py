"""The formats of data sets. The ending of a path selects one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from flowrl.core.batch import Batch, Schema
from flowrl.nodes.datasets import hdf5, minari, npz
from flowrl.nodes.datasets.metadata import NO_METADATA, DatasetMetadata


class TableFormat(Protocol):
    """The functions of a module that reads and writes one format."""

    def read_schema(self, path: Path) -> tuple[Schema, int]:
        """The columns and the number of rows."""

    def read_metadata(self, path: Path) -> DatasetMetadata:
        """What the file states beside its arrays."""

    def read(self, path: Path, rows: int | None = None) -> Batch:
        """The table, or its first rows."""

    def write(self, path: Path, table: Batch, metadata: DatasetMetadata = NO_METADATA) -> None:
        """Write a table atomically."""


def format_of(path: Path) -> TableFormat:
    """HDF5 by its endings, Minari by a version at the end of the folder's name (`expert-v0`), else NPZ."""
    if minari.FOLDER_NAME.match(path.name):
        return cast(TableFormat, minari)
    return cast(TableFormat, hdf5 if path.suffix in hdf5.SUFFIXES else npz)
