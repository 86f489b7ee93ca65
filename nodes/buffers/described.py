"""What buffers say of themselves before a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.core.batch import Schema, row_bytes
from flowrl.core.context import Context
from flowrl.core.node import Surroundings, UnsoundError
from flowrl.nodes.buffers.capacity import rows_for
from flowrl.nodes.buffers.once import Once, pairs
from flowrl.nodes.buffers.ring import Ring
from flowrl.nodes.buffers.storage import storage_of


def table_schema(surroundings: Surroundings) -> Schema:
    """The columns of what comes in at `data`."""
    schema = surroundings.inputs["data"]
    if schema is None:
        raise UnsoundError("the data is not a table", "connect what gives samples")
    return schema


def sound_size(config: Any, bytes_of_row: int) -> int:
    """The rows that are held; enough for a batch."""
    try:
        size = rows_for(config.size, config.size_bytes, bytes_of_row)
    except ValueError as wrong:
        raise UnsoundError(str(wrong), "make `size_bytes` larger", "size_bytes") from wrong
    if config.batch_size > size:
        raise UnsoundError(
            f"batches of {config.batch_size} rows are drawn from {size}",
            "make `size` larger or `batch_size` smaller",
            "batch_size" if size == config.size else "size_bytes",
        )
    return size


def once_for(config: Any, schema: Schema | None) -> Once | None:
    """How observations are stored once, if they are: where frames are stacked, or it is asked for."""
    known = schema or {}
    of_column = {name: known[name].frames or 1 for name in pairs(known)}
    frames = {name: config.frames or n for name, n in of_column.items()} or {
        "obs": config.frames or 1
    }
    asked = config.store_once
    if asked is None:
        asked = any(n > 1 for n in frames.values())
    return Once(frames) if asked else None


def ring_for(config: Any, ctx: Context, notes: Mapping[str, str] | None = None) -> Ring:
    """A ring as the parameters of a buffer say."""
    once = once_for(config, ctx.inputs.get("data"))
    storage = storage_of(config.storage)
    storage.belongs_to(ctx)
    ring = Ring(config.size, config.size_bytes, notes, once, storage)
    if ring.report:
        ctx.log(ring.report)
        ctx.report_irregularity("rows of an earlier process were gone on with", ring.rows)
    return ring


def nondeterministic(config: Any, more: str = "") -> str:
    """Why two runs may differ, if they may."""
    return "; ".join(filter(None, (more, storage_of(config.storage).nondeterministic)))


def memory_bytes(config: Any, schema: Schema, rows: int, beside: int = 0) -> int:
    """What so many rows take in memory, with so many bytes beside each."""
    full = rows * stored_bytes(config, schema)
    return storage_of(config.storage).memory_bytes(full) + rows * beside


def stored_bytes(config: Any, schema: Schema) -> int:
    """Bytes of a row of these columns."""
    once = once_for(config, schema)
    return row_bytes(schema) if once is None else once.row_bytes(schema)
