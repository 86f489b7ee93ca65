"""What buffers say of themselves before a run."""

from __future__ import annotations

from typing import Any

from flowrl.batch import Schema
from flowrl.node import Known, Unsound
from flowrl.nodes.buffers.capacity import rows_for


def table_schema(known: Known) -> Schema:
    """The columns of what comes in at `data`."""
    schema = known.inputs["data"]
    if schema is None:
        raise Unsound("the data is not a table", "connect what gives samples")
    return schema


def sound_size(config: Any, bytes_of_row: int) -> int:
    """The rows that are held; enough for a batch."""
    try:
        size = rows_for(config.size, config.size_bytes, bytes_of_row)
    except ValueError as wrong:
        raise Unsound(str(wrong), "make `size_bytes` larger", "size_bytes") from wrong
    if config.batch_size > size:
        raise Unsound(
            f"batches of {config.batch_size} rows are drawn from {size}",
            "make `size` larger or `batch_size` smaller",
            "batch_size" if size == config.size else "size_bytes",
        )
    return size
