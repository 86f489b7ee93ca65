"""The columns of a row, with each observation stored once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Column, Schema, row_bytes
from flowrl.nodes.buffers.frames import SPARE, Encoded, Frames
from flowrl.nodes.buffers.storage import Places, Rows, Storage

NUMBER_BYTES = 8


def pool_of(name: str) -> str:
    """What the frames of a column are called."""
    return f"{name} frames"


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


class OnceRows(NamedTuple):
    """Rows as they are kept, and the frames that are still to be written."""

    columns: dict[str, Array]
    held: int  # newest rows that keep their frames
    frames: list[tuple[Frames, Encoded]]

    def write(self) -> None:
        """Write the frames."""
        for frames, encoded in self.frames:
            frames.write(encoded)


class Once:
    """Puts places of frames where observations are, and back."""

    def __init__(self, frames: Mapping[str, int]) -> None:
        """`frames`: of how many frames, on axis 0, an observation's column consists."""
        self.stacked = dict(frames)
        self._frames: dict[str, Frames] = {}
        self._after: dict[str, str] = {}

    def places(self, schema: Schema, rows: int) -> Places:
        """What is to be allocated for so many rows: the columns as they are kept, and pools of frames."""
        self._after = pairs(schema)
        found = {name: (column, rows) for name, column in schema.items()}
        for name, after in self._after.items():
            stacked = self.stacked.get(name, 1)
            fits = stacked == 1 or schema[name].shape[:1] == (stacked,)
            if schema[name] != schema[after] or not fits:
                raise ValueError(
                    f"'{name}' is {schema[name]}, '{after}' {schema[after]}, and an observation "
                    f"{stacked} frames on axis 0; these cannot be stored once"
                )
            found[name] = found[after] = (Column("int64", (stacked,)), rows)
            frame = Column("uint8", (schema[name].row_bytes // stacked,))
            found[pool_of(name)] = (frame, max(rows + rows // SPARE, 2 * stacked))
        return found

    def use(
        self, schema: Schema, columns: dict[str, Rows], storage: Storage, limited: bool
    ) -> None:
        """Take the pools out of what was allocated; those that are limited will never grow."""
        for name in self._after:
            pool = pool_of(name)
            grow = None if limited else partial(storage.grow, pool)
            stacked = self.stacked.get(name, 1)
            self._frames[name] = Frames(stacked, schema[name], columns.pop(pool), grow)

    @property
    def stacks(self) -> dict[str, int]:
        """Of how many frames each observation consists that is stored once."""
        return {name: self.stacked.get(name, 1) for name in self._after}

    @property
    def kept(self) -> list[str]:
        """The columns that hold places of frames."""
        return [name for pair in self._after.items() for name in pair]

    def row_bytes(self, schema: Schema) -> int:
        """Bytes of a row."""
        return once_bytes(schema, self.stacked)

    def encode(self, columns: Mapping[str, Array], first_row: int, held: int) -> OnceRows:
        """Rows as they are kept; of all rows the newest `held` are to be kept."""
        found = dict(columns)
        frames: list[tuple[Frames, Encoded]] = []
        for name, after in self._after.items():
            one = self._frames[name]
            try:
                encoded = one.encode(columns[name], columns[after], first_row, held)
            except BaseException:
                for done, _ in frames:
                    done.undo()
                raise
            found[name], found[after], held = encoded[:3]
            frames.append((one, encoded))
        return OnceRows(found, held, frames)

    def decode(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Rows as they came."""
        found = dict(columns)
        for name, after in self._after.items():
            frames = self._frames[name]
            if name in found:
                found[name] = frames.decode(columns[name])
            if after in found:
                found[after] = frames.decode(columns[after])
        return found

    def adopt(self, columns: Mapping[str, Array], first_row: int) -> None:
        """The pools hold the frames of these rows already (as they are kept, the oldest first)."""
        for name, after in self._after.items():
            self._frames[name].adopt(np.hstack([columns[name], columns[after]]), first_row)

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
