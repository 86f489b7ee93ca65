"""The NPZ format: one array for each column, no pickles."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Column, Schema
from flowrl.core.node import UnsoundError
from flowrl.nodes.datasets.metadata import ARRAY_NAME, NO_METADATA, DatasetMetadata, decode_metadata

HINT = "an npz_writer node writes such files"


def read_schema(path: Path) -> tuple[Schema, int]:
    """The columns and the number of rows. Only the headers of the arrays are read."""
    try:
        with zipfile.ZipFile(path) as file:
            headers = {name.removesuffix(".npy"): _header(file, name) for name in file.namelist()}
    except FileNotFoundError as missing:
        raise UnsoundError(f"there is no file '{path}'", HINT, "path") from missing
    except (OSError, ValueError, zipfile.BadZipFile) as broken:
        raise UnsoundError(f"'{path}' cannot be read: {broken}", HINT, "path") from broken
    headers.pop(ARRAY_NAME, None)
    rows = {shape[:1] for _, shape in headers.values()}
    if len(rows) != 1 or rows == {()}:
        raise UnsoundError(f"'{path}' is not a table: its arrays differ in length", HINT, "path")
    schema = {name: Column(str(dtype), shape[1:]) for name, (dtype, shape) in headers.items()}
    return read_metadata(path).add_facts(schema), rows.pop()[0]


def read_metadata(path: Path) -> DatasetMetadata:
    """What the file states beside its arrays. A file of another program states nothing."""
    try:
        with zipfile.ZipFile(path) as file:
            if f"{ARRAY_NAME}.npy" not in file.namelist():
                return NO_METADATA
            with file.open(f"{ARRAY_NAME}.npy") as array:
                return decode_metadata(np.lib.format.read_array(array, allow_pickle=False))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as broken:
        raise UnsoundError(f"'{path}' cannot be read: {broken}", HINT, "path") from broken


def read(path: Path, rows: int | None = None) -> Batch:
    """The table, or its first rows."""
    read_schema(path)  # reports what is wrong with the file
    with np.load(path, allow_pickle=False) as file:
        return Batch({name: file[name][:rows] for name in file.files if name != ARRAY_NAME})


def write(path: Path, table: Batch, metadata: DatasetMetadata = NO_METADATA) -> None:
    """Write a temporary file and rename it, so that readers never see an incomplete one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            arrays: dict[str, Any] = {**table.columns, ARRAY_NAME: metadata.encode()}
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _header(file: zipfile.ZipFile, name: str) -> tuple[np.dtype, tuple[int, ...]]:
    with file.open(name) as array:
        version = np.lib.format.read_magic(array)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(array)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(array)
    if dtype.hasobject:
        raise ValueError(f"'{name}' holds Python objects")
    return dtype, shape
