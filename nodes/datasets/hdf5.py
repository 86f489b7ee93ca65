"""The HDF5 format (extra `flowrl[hdf5]`): one data set for each column, groups for nested names."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Column, Schema
from flowrl.core.node import MissingPackageError, UnsoundError
from flowrl.nodes.datasets.metadata import ARRAY_NAME, NO_METADATA, DatasetMetadata, decode_metadata

SUFFIXES = (".h5", ".hdf5")
HINT = "an npz_writer node writes such files"


def read_schema(path: Path) -> tuple[Schema, int]:
    """The columns and the number of rows. No array is read."""
    with _open(path) as file:
        datasets = dict(_datasets(file))
        metadata = _metadata_of(file)
    rows = {shape[:1] for _, shape in datasets.values()}
    if len(rows) != 1 or rows == {()}:
        raise UnsoundError(f"'{path}' is not a table: its arrays differ in length", HINT, "path")
    schema = {name: Column(dtype, shape[1:]) for name, (dtype, shape) in datasets.items()}
    return metadata.add_facts(schema), rows.pop()[0]


def read_metadata(path: Path) -> DatasetMetadata:
    """What the file states beside its arrays."""
    with _open(path) as file:
        return _metadata_of(file)


def read(path: Path, rows: int | None = None) -> Batch:
    """The table, or its first rows."""
    schema, _ = read_schema(path)
    with _open(path) as file:
        return Batch({name: file[name][:rows] for name in schema})


def write(path: Path, table: Batch, metadata: DatasetMetadata = NO_METADATA) -> None:
    """Write a temporary file and rename it, so that readers never see an incomplete one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _import_h5py().File(temporary, "w") as file:
            for name, array in table.columns.items():
                file.create_dataset(name, data=array, track_times=False)
            file.attrs[ARRAY_NAME] = metadata.encode()
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _import_h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as missing:
        raise MissingPackageError(
            "HDF5 needs h5py", "pip install 'flowrl[hdf5]'", "path"
        ) from missing


def _open(path: Path) -> Any:
    if not path.exists():
        raise UnsoundError(f"there is no file '{path}'", HINT, "path")
    try:
        return _import_h5py().File(path, "r")
    except OSError as broken:
        raise UnsoundError(f"'{path}' cannot be read: {broken}", HINT, "path") from broken


def _datasets(group: Any, prefix: str = "") -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Name, dtype and shape of each array; one in a group is named `group/name`."""
    for name, item in group.items():
        if hasattr(item, "dtype"):
            if item.dtype.hasobject:
                raise UnsoundError(f"'{prefix}{name}' holds Python objects or text", HINT, "path")
            yield prefix + name, (str(np.dtype(item.dtype)), tuple(item.shape))
        else:
            yield from _datasets(item, f"{prefix}{name}/")


def _metadata_of(file: Any) -> DatasetMetadata:
    return (
        decode_metadata(np.asarray(file.attrs[ARRAY_NAME]))
        if ARRAY_NAME in file.attrs
        else NO_METADATA
    )
