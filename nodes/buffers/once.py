"""The columns of a row, with each observation stored once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.batch import Array, Column, Schema, row_bytes
from flowrl.nodes.buffers.frames import SPARE, Frames

NUMBER_BYTES = 8


def pairs(names: Mapping[str, Any]) -> dict[str, str]:
    """Each column of an observation, and that of the next one: `obs/camera`, `next_obs/camera`."""
    leaves = [name for name in names if name.split("/")[0] == "obs"]
    return {name: f"next_{name}" for name in leaves if f"next_{name}" in names}


def once_bytes(schema: Schema, frames: Mapping[str, int]) -> int:
    """Bytes of a row whose observations are stored once."""
    found = row_bytes(schema)
    for name, after in pairs(schema).items():
        stacked = frames.get(name, 1)
        frame_bytes = schema[name].row_bytes // stacked
        found += 2 * stacked * NUMBER_BYTES + frame_bytes + -(-frame_bytes // SPARE)
        found -= schema[name].row_bytes + schema[after].row_bytes
    return found


class Once:
    """Puts numbers of frames in the place of observations, and back."""

    def __init__(self, frames: Mapping[str, int]) -> None:
        """`frames`: of how many frames, on axis 0, an observation's column consists."""
        self._stacked = dict(frames)
        self._frames: dict[str, Frames] = {}
        self._after: dict[str, str] = {}

    def allocate(self, schema: Schema, rows: int) -> dict[str, Column]:
        """Stores for so many rows; gives the columns as they are kept."""
        self._after = pairs(schema)
        found = dict(schema)
        for name, after in self._after.items():
            stacked = self._stacked.get(name, 1)
            fits = stacked == 1 or schema[name].shape[:1] == (stacked,)
            if schema[name] != schema[after] or not fits:
                raise ValueError(
                    f"'{name}' is {schema[name]}, '{after}' {schema[after]}, and an observation "
                    f"{stacked} frames on axis 0; these cannot be stored once"
                )
            self._frames[name] = Frames(rows, stacked, schema[name])
            found[name] = found[after] = Column("int64", (stacked,))
        return found

    def row_bytes(self, schema: Schema) -> int:
        """Bytes of a row."""
        return once_bytes(schema, self._stacked)

    def encode(self, columns: Mapping[str, Array], first_row: int) -> dict[str, Array]:
        """Rows as they are kept."""
        found = dict(columns)
        for name, after in self._after.items():
            now, later = self._frames[name].encode(columns[name], columns[after], first_row)
            found[name], found[after] = now, later
        return found

    def decode(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Rows as they came."""
        found = dict(columns)
        for name, after in self._after.items():
            for column in (name, after):
                if column in columns:
                    found[column] = self._frames[name].decode(columns[column])
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return sum(frames.nbytes for frames in self._frames.values())

    def clear(self) -> None:
        """No row is held any more."""
        for frames in self._frames.values():
            frames.clear()

    def state_dict(self) -> dict[str, Any]:
        """The frames of each column."""
        return {name: frames.state_dict() for name, frames in self._frames.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold these frames."""
        for name, frames in self._frames.items():
            frames.load_state_dict(state[name])
