"""The parameters that decide how rows are stored, and what they mean: known before a run, and applied in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.core.batch import Schema, row_bytes
from flowrl.core.config import Config, param, part
from flowrl.core.context import Context
from flowrl.core.node import Surroundings, UnsoundError
from flowrl.nodes.buffers.storage.deduplication import FrameDeduplicator, observation_pairs
from flowrl.nodes.buffers.storage.limits import BYTES_PATTERN, max_rows
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.storage.storage import make_storage


class StorageConfig(Config):
    """How a buffer stores rows."""

    size: int = param(20_000, "rows that are kept; newer ones replace the oldest", ge=1)
    size_bytes: str | None = param(
        None, "the most bytes that rows may take: 800MB", pattern=BYTES_PATTERN
    )
    store_once: bool | None = param(
        None, "store equal frames once; default: where frames are stacked"
    )
    frames: int | None = param(None, "frames on axis 0 of obs; default: as the env says", ge=1)
    storage: Any = part(
        "storage", "where rows are stored: memory, mapped, compressed", default="memory"
    )


def input_schema(surroundings: Surroundings) -> Schema:
    """The columns of the rows that arrive at `data`."""
    schema = surroundings.inputs["data"]
    if schema is None:
        raise UnsoundError("the data is not a table", "connect a node that emits samples")
    return schema


class StoragePlan:
    """What a buffer will store and how much memory it will take, for `describe`."""

    def __init__(self, config: Any, schema: Schema, metadata_bytes: int = 0) -> None:
        """`metadata_bytes` are kept in memory for each row and count towards `size_bytes`."""
        self._config = config
        deduplicator = make_deduplicator(config, schema)
        self._row_bytes = deduplicator.row_bytes(schema) if deduplicator else row_bytes(schema)
        try:
            self.rows = max_rows(config.size, config.size_bytes, self._row_bytes + metadata_bytes)
        except ValueError as wrong:
            raise UnsoundError(str(wrong), "make `size_bytes` larger", "size_bytes") from wrong
        if config.batch_size > self.rows:
            raise UnsoundError(
                f"batches of {config.batch_size} rows are drawn from {self.rows}",
                "make `size` larger or `batch_size` smaller",
                "batch_size" if self.rows == config.size else "size_bytes",
            )

    def memory_bytes(self, beside_each_row: int = 0) -> int:
        """The memory for all rows, with so many bytes of bookkeeping beside each."""
        stored = make_storage(self._config.storage).memory_bytes(self.rows * self._row_bytes)
        return stored + self.rows * beside_each_row

    def nondeterministic(self, pacing: str = "") -> str:
        """Why two runs may differ: the reason of the pacing and that of the storage."""
        return "; ".join(
            filter(None, (pacing, make_storage(self._config.storage).nondeterministic))
        )


def make_deduplicator(config: Any, schema: Schema | None) -> FrameDeduplicator | None:
    """A deduplicator where frames are stacked or `store_once` asks for it, else None."""
    columns = schema or {}
    stacked = {name: columns[name].frames or 1 for name in observation_pairs(columns)}
    frames = {name: config.frames or n for name, n in stacked.items()} or {
        "obs": config.frames or 1
    }
    enabled = config.store_once
    if enabled is None:
        enabled = any(n > 1 for n in frames.values())
    return FrameDeduplicator(frames) if enabled else None


def make_ring(config: Any, ctx: Context, metadata: Mapping[str, str] | None = None) -> Ring:
    """The ring that a buffer's parameters describe. Rows that an earlier process left are reported."""
    deduplicator = make_deduplicator(config, ctx.inputs.get("data"))
    storage = make_storage(config.storage)
    storage.bind(ctx)
    ring = Ring(config.size, config.size_bytes, metadata, deduplicator, storage)
    if ring.recovery_report:
        ctx.log(ring.recovery_report)
        ctx.report_irregularity("rows of an earlier process were continued with", ring.row_count)
    return ring
