"""Tables in HDF5 files (extra `flowrl[hdf5]`): one data set a column, groups for nested names."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Column, Schema
from flowrl.core.node import MissingPackageError, UnsoundError
from flowrl.nodes.datasets.about import NAME, NOTHING, About, read_about

ENDINGS = (".h5", ".hdf5")
HINT = "an npz_writer node writes such files"


def read_schema(path: Path) -> tuple[Schema, int]:
    """The columns and the number of rows; no array is read."""
    with _open(path) as file:
        sets = dict(_sets(file))
        told = _about(file)
    rows = {shape[:1] for _, shape in sets.values()}
    if len(rows) != 1 or rows == {()}:
        raise UnsoundError(f"'{path}' is not a table: its arrays differ in length", HINT, "path")
    schema = {name: Column(dtype, shape[1:]) for name, (dtype, shape) in sets.items()}
    return told.told(schema), rows.pop()[0]


def about_of(path: Path) -> About:
    """What the file says beside its arrays."""
    with _open(path) as file:
        return _about(file)


def read(path: Path, rows: int | None = None) -> Batch:
    """The table, or its first rows."""
    schema, _ = read_schema(path)
    with _open(path) as file:
        return Batch({name: file[name][:rows] for name in schema})


def write(path: Path, table: Batch, about: About = NOTHING) -> None:
    """Write the table beside the file, then put it in its place: nobody sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _h5py().File(aside, "w") as file:
            for name, array in table.columns.items():
                file.create_dataset(name, data=array, track_times=False)
            file.attrs[NAME] = about.array()
        with open(aside, "rb") as written:
            os.fsync(written.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _h5py() -> Any:
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
        return _h5py().File(path, "r")
    except OSError as broken:
        raise UnsoundError(f"'{path}' cannot be read: {broken}", HINT, "path") from broken


def _sets(group: Any, before: str = "") -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Name, dtype and shape of each array, those in groups as `group/name`."""
    for name, found in group.items():
        if hasattr(found, "dtype"):
            if found.dtype.hasobject:
                raise UnsoundError(f"'{before}{name}' holds Python objects or text", HINT, "path")
            yield before + name, (str(np.dtype(found.dtype)), tuple(found.shape))
        else:
            yield from _sets(found, f"{before}{name}/")


def _about(file: Any) -> About:
    return read_about(np.asarray(file.attrs[NAME])) if NAME in file.attrs else NOTHING
