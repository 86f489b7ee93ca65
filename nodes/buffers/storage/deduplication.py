"""Frame deduplication: rows contain places of frames in a pool instead of whole observations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Column, Schema, row_bytes
from flowrl.nodes.buffers.storage.frame_pool import SPARE_EVERY_ROWS, EncodedRows, FramePool
from flowrl.nodes.buffers.storage.storage import Allocations, ColumnStore, Storage

PLACE_BYTES = 8


def pool_name(column: str) -> str:
    """Return the name under which the frames of an observation column are allocated."""
    return f"{column} frames"


def observation_pairs(names: Mapping[str, Any]) -> dict[str, str]:
    """Map each observation column to the column of next observations: `obs/camera` to `next_obs/camera`."""
    leaves = [name for name in names if name.split("/")[0] == "obs"]
    return {name: f"next_{name}" for name in leaves if f"next_{name}" in names}


def deduplicated_row_bytes(schema: Schema, frames: Mapping[str, int]) -> int:
    """Return the bytes of a row with deduplicated frames, including its share of the pool."""
    total = row_bytes(schema)
    for name, next_name in observation_pairs(schema).items():
        stacked = frames.get(name, 1)
        frame_bytes = schema[name].row_bytes // stacked
        total += 2 * stacked * PLACE_BYTES + frame_bytes + -(-frame_bytes // SPARE_EVERY_ROWS)
        total -= schema[name].row_bytes + schema[next_name].row_bytes
    return total


class DeduplicatedRows(NamedTuple):
    """Rows as they are stored, and their new frames, which are not written yet."""

    columns: dict[str, Array]
    held: int  # the number of newest rows whose frames are kept
    frames: list[tuple[FramePool, EncodedRows]]

    def write_frames(self) -> None:
        for pool, encoded in self.frames:
            pool.write(encoded)


class FrameDeduplicator:
    """Replaces observations by places of frames, and back. Each pair of observation columns has a pool."""

    def __init__(self, frames: Mapping[str, int]) -> None:
        """`frames` is the number of frames on axis 0 of each observation column; 1 if a column is not in it."""
        self._frames = dict(frames)
        self._pools: dict[str, FramePool] = {}
        self._pairs: dict[str, str] = {}

    def misfit(self, schema: Schema) -> str:
        """Return why the frames of rows with these columns cannot be stored once; empty if they can."""
        for name, next_name in observation_pairs(schema).items():
            stacked = self._frames.get(name, 1)
            fits = stacked == 1 or schema[name].shape[:1] == (stacked,)
            if schema[name] != schema[next_name] or not fits:
                return (
                    f"frames cannot be deduplicated: '{name}' is {schema[name]}, '{next_name}' is "
                    f"{schema[next_name]}; both must have the same type, with {stacked} frames on axis 0"
                )
        return ""

    def allocations(self, schema: Schema, rows: int) -> Allocations:
        """Return what `rows` rows need: the columns as they are stored, and the pools."""
        if why := self.misfit(schema):
            raise ValueError(why)
        self._pairs = observation_pairs(schema)
        allocations = {name: (column, rows) for name, column in schema.items()}
        for name, next_name in self._pairs.items():
            stacked = self._frames.get(name, 1)
            allocations[name] = allocations[next_name] = (Column("int64", (stacked,)), rows)
            frame = Column("uint8", (schema[name].row_bytes // stacked,))
            places = max(rows + rows // SPARE_EVERY_ROWS, 2 * stacked)
            allocations[pool_name(name)] = (frame, places)
        return allocations

    def attach_pools(
        self, schema: Schema, columns: dict[str, ColumnStore], storage: Storage, limited: bool
    ) -> None:
        """Move the pools out of the allocated columns. Limited pools never grow."""
        for name in self._pairs:
            pool = pool_name(name)
            grow = None if limited else partial(storage.grow, pool)
            stacked = self._frames.get(name, 1)
            self._pools[name] = FramePool(stacked, schema[name], columns.pop(pool), grow)

    @property
    def stacked_frames(self) -> dict[str, int]:
        """The number of frames in each deduplicated observation."""
        return {name: self._frames.get(name, 1) for name in self._pairs}

    @property
    def deduplicated_columns(self) -> list[str]:
        """The columns that hold places of frames."""
        return [name for pair in self._pairs.items() for name in pair]

    def row_bytes(self, schema: Schema) -> int:
        return deduplicated_row_bytes(schema, self._frames)

    def encode(self, columns: Mapping[str, Array], first_row: int, held: int) -> DeduplicatedRows:
        """Encode rows as they are stored. `held` is the number of newest rows, new ones included, to keep."""
        stored = dict(columns)
        frames: list[tuple[FramePool, EncodedRows]] = []
        for name, next_name in self._pairs.items():
            pool = self._pools[name]
            try:
                encoded = pool.encode(columns[name], columns[next_name], first_row, held)
            except BaseException:
                for other, _ in frames:
                    other.undo()
                raise
            stored[name], stored[next_name], held = encoded[:3]
            frames.append((pool, encoded))
        return DeduplicatedRows(stored, held, frames)

    def decode(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Decode rows as they were pushed."""
        decoded = dict(columns)
        for name, next_name in self._pairs.items():
            pool = self._pools[name]
            if name in decoded:
                decoded[name] = pool.decode(columns[name])
            if next_name in decoded:
                decoded[next_name] = pool.decode(columns[next_name])
        return decoded

    def recover(self, columns: Mapping[str, Array], first_row: int) -> None:
        """Continue with pools that contain the frames of these stored rows, the oldest first."""
        for name, next_name in self._pairs.items():
            places = np.hstack([columns[name], columns[next_name]])
            self._pools[name].recover(places, first_row)

    @property
    def nbytes(self) -> int:
        """The bytes of all pools."""
        return sum(pool.nbytes for pool in self._pools.values())

    def clear(self) -> None:
        for pool in self._pools.values():
            pool.clear()

    def state_dict(self, live: bool = False) -> dict[str, Any]:
        return {name: pool.state_dict(live) for name, pool in self._pools.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, pool in self._pools.items():
            pool.load_state_dict(state[name])
