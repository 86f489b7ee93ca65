"""What the formats of single files (NPZ and HDF5) have in common: their arrays form a table, and files are replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flowrl.core.batch import Column, Schema
from flowrl.core.facts import UnsoundError
from flowrl.nodes.datasets.metadata import DatasetMetadata

HINT = "an npz_writer node writes such files"


def table_schema(
    path: Path, arrays: Mapping[str, tuple[str, tuple[int, ...]]], metadata: DatasetMetadata
) -> tuple[Schema, int]:
    """Return the columns and the number of rows of arrays, given by dtype and shape; refuse unequal lengths."""
    lengths = {shape[:1] for _, shape in arrays.values()}
    if len(lengths) != 1 or lengths == {()}:
        raise UnsoundError(f"'{path}' is not a table: its arrays differ in length", HINT, "path")
    schema = {name: Column(dtype, shape[1:]) for name, (dtype, shape) in arrays.items()}
    return metadata.add_facts(schema), lengths.pop()[0]


@contextmanager
def reported_problems(path: Path) -> Iterator[None]:
    """Raise whatever a malformed file makes a reader raise as an `UnsoundError` that names the file."""
    try:
        yield
    except UnsoundError:
        raise
    except FileNotFoundError as missing:
        raise UnsoundError(f"the file '{path}' does not exist", HINT, "path") from missing
    except Exception as broken:  # numpy, zipfile and h5py have no common error
        what = str(broken) or type(broken).__name__
        raise UnsoundError(f"'{path}' cannot be read: {what}", HINT, "path") from broken


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Provide a temporary path, and rename the file written there, so that readers never see an incomplete one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
