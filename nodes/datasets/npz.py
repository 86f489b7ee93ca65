"""Tables in NPZ files: one array a column, no pickles."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Column, Schema
from flowrl.core.node import UnsoundError
from flowrl.nodes.datasets.about import NAME, NOTHING, About, read_about

HINT = "an npz_writer node writes such files"


def read_schema(path: Path) -> tuple[Schema, int]:
    """The columns and the number of rows; only the arrays' headers are read."""
    try:
        with zipfile.ZipFile(path) as file:
            headers = {name.removesuffix(".npy"): _header(file, name) for name in file.namelist()}
    except FileNotFoundError as missing:
        raise UnsoundError(f"there is no file '{path}'", HINT, "path") from missing
    except (OSError, ValueError, zipfile.BadZipFile) as broken:
        raise UnsoundError(f"'{path}' cannot be read: {broken}", HINT, "path") from broken
    headers.pop(NAME, None)
    rows = {shape[:1] for _, shape in headers.values()}
    if len(rows) != 1 or rows == {()}:
        raise UnsoundError(f"'{path}' is not a table: its arrays differ in length", HINT, "path")
    schema = {name: Column(str(dtype), shape[1:]) for name, (dtype, shape) in headers.items()}
    return about_of(path).told(schema), rows.pop()[0]


def about_of(path: Path) -> About:
    """What the file says beside its arrays; one of another program says nothing."""
    try:
        with zipfile.ZipFile(path) as file:
            if f"{NAME}.npy" not in file.namelist():
                return NOTHING
            with file.open(f"{NAME}.npy") as array:
                return read_about(np.lib.format.read_array(array, allow_pickle=False))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as broken:
        raise UnsoundError(f"'{path}' cannot be read: {broken}", HINT, "path") from broken


def read(path: Path, rows: int | None = None) -> Batch:
    """The table, or its first rows."""
    read_schema(path)  # says what is wrong with the file
    with np.load(path, allow_pickle=False) as file:
        return Batch({name: file[name][:rows] for name in file.files if name != NAME})


def write(path: Path, table: Batch, about: About = NOTHING) -> None:
    """Write the table beside the file, then put it in its place: nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            arrays: dict[str, Any] = {**table.columns, NAME: about.array()}
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


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
