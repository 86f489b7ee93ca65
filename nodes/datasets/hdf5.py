"""The HDF5 format (extra `flowrl[hdf5]`): one HDF5 dataset for each column, and groups for nested names."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Schema
from flowrl.core.facts import MissingPackageError, UnsoundError
from flowrl.nodes.datasets.metadata import ARRAY_NAME, NO_METADATA, DatasetMetadata, decode_metadata
from flowrl.nodes.datasets.table_files import HINT, replaced_file, reported_problems, table_schema

SUFFIXES = (".h5", ".hdf5")


def read_schema(path: Path) -> tuple[Schema, int]:
    """Return the columns and the number of rows. No array is read."""
    with _open(path) as file:
        return table_schema(path, dict(_datasets(file)), _metadata_of(file))


def read_metadata(path: Path) -> DatasetMetadata:
    """Read the metadata. Files of other programs have none."""
    with _open(path) as file:
        return _metadata_of(file)


def read(path: Path, rows: int | None = None) -> Batch:
    """Read the table, or its first rows."""
    schema, _ = read_schema(path)
    with _open(path) as file:
        return Batch({name: file[name][:rows] for name in schema})


def write(path: Path, table: Batch, metadata: DatasetMetadata = NO_METADATA) -> None:
    """Write a table; a file at this path is replaced."""
    with replaced_file(path) as temporary, _import_h5py().File(temporary, "w") as file:
        for name, array in table.columns.items():
            file.create_dataset(name, data=array, track_times=False)
        file.attrs[ARRAY_NAME] = metadata.encode()


def _import_h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as missing:
        raise MissingPackageError(
            "HDF5 requires h5py", "pip install 'flowrl[hdf5]'", "path"
        ) from missing


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a file for reading, and report what is wrong with it."""
    if not path.exists():
        raise UnsoundError(f"the file '{path}' does not exist", HINT, "path")
    h5py = _import_h5py()
    with reported_problems(path), h5py.File(path, "r") as file:
        yield file


def _datasets(group: Any, prefix: str = "") -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Yield name, dtype and shape of each array. An array in a group is named `group/name`."""
    for name, item in group.items():
        if hasattr(item, "dtype"):
            if item.dtype.hasobject:
                raise UnsoundError(
                    f"'{prefix}{name}' contains Python objects or text", HINT, "path"
                )
            yield prefix + name, (str(np.dtype(item.dtype)), tuple(item.shape))
        else:
            yield from _datasets(item, f"{prefix}{name}/")


def _metadata_of(file: Any) -> DatasetMetadata:
    if ARRAY_NAME not in file.attrs:
        return NO_METADATA
    return decode_metadata(np.asarray(file.attrs[ARRAY_NAME]))
