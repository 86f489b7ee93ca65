"""The NPZ format: one array for each column, no pickles."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Schema
from flowrl.nodes.datasets.metadata import ARRAY_NAME, NO_METADATA, DatasetMetadata, decode_metadata
from flowrl.nodes.datasets.table_files import replaced_file, reported_problems, table_schema


def read_schema(path: Path) -> tuple[Schema, int]:
    """Return the columns and the number of rows. Only the headers of the arrays are read."""
    with _open(path) as file:
        headers = {name.removesuffix(".npy"): _header(file, name) for name in file.namelist()}
    headers.pop(ARRAY_NAME, None)
    metadata = read_metadata(path)
    with reported_problems(path):
        return table_schema(path, headers, metadata)


def read_metadata(path: Path) -> DatasetMetadata:
    """Read the metadata. Files of other programs have none."""
    with _open(path) as file:
        if f"{ARRAY_NAME}.npy" not in file.namelist():
            return NO_METADATA
        with file.open(f"{ARRAY_NAME}.npy") as array:
            return decode_metadata(np.lib.format.read_array(array, allow_pickle=False))


def read(path: Path, rows: int | None = None) -> Batch:
    """Read the table, or its first rows."""
    read_schema(path)  # refuses a file that is not a table
    with reported_problems(path), np.load(path, allow_pickle=False) as file:
        return Batch({name: file[name][:rows] for name in file.files if name != ARRAY_NAME})


def write(path: Path, table: Batch, metadata: DatasetMetadata = NO_METADATA) -> None:
    """Write a table; a file at this path is replaced."""
    arrays: dict[str, Any] = {**table.columns, ARRAY_NAME: metadata.encode()}
    with replaced_file(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a file for reading, and report what is wrong with it."""
    with reported_problems(path), zipfile.ZipFile(path) as file:
        yield file


def _header(file: zipfile.ZipFile, name: str) -> tuple[str, tuple[int, ...]]:
    """Read dtype and shape of an array."""
    with file.open(name) as array:
        version = np.lib.format.read_magic(array)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(array)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(array)
    if dtype.hasobject:
        raise ValueError(f"'{name}' contains Python objects")
    return str(dtype), shape
