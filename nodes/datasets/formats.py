"""The formats of datasets. The name of the file or folder selects one."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, cast

from flowrl.core.batch import Batch, Schema
from flowrl.nodes.datasets import hdf5, minari, npz
from flowrl.nodes.datasets.metadata import NO_METADATA, DatasetMetadata


class TableFormat(Protocol):
    """The functions of a module that reads and writes one format."""

    def read_schema(self, path: Path) -> tuple[Schema, int]:
        """Return the columns and the number of rows."""

    def read_metadata(self, path: Path) -> DatasetMetadata:
        """Read what the file says of its columns, without its rows."""

    def read(self, path: Path, rows: int | None = None) -> Batch:
        """Read the table, or its first rows."""

    def write(self, path: Path, table: Batch, metadata: DatasetMetadata = NO_METADATA) -> None:
        """Write a table atomically; a dataset at this path is replaced."""


def format_of(path: Path) -> TableFormat:
    """Return Minari if the name ends in a version (`expert-v0`), HDF5 if it ends in `.h5` or `.hdf5`, else NPZ."""
    if minari.FOLDER_NAME.match(path.name):
        return cast(TableFormat, minari)
    return cast(TableFormat, hdf5 if path.suffix in hdf5.SUFFIXES else npz)
