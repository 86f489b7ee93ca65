"""The parameters that decide how a buffer stores rows: what they need before a run, and the ring that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flowrl.core.batch import Schema, row_bytes
from flowrl.core.config import Config, param, part
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.sizes import BYTES_PATTERN
from flowrl.nodes.buffers.storage.deduplication import FrameDeduplicator, observation_pairs
from flowrl.nodes.buffers.storage.limits import max_rows
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.storage.storage import make_storage


class StorageConfig(Config):
    """How a buffer stores rows."""

    size: int = param(20_000, "rows that are kept; newer rows replace the oldest", ge=1)
    size_bytes: str | None = param(
        None, "limit of the bytes of all rows, such as 800MB", pattern=BYTES_PATTERN
    )
    store_once: bool | None = param(
        None, "store equal frames once; default: if the env stacks frames"
    )
    frames: int | None = param(None, "frames on axis 0 of obs; default: as the env declares", ge=1)
    storage: Any = part(
        "storage", "where rows are stored: memory, mapped or compressed", default="memory"
    )


def input_schema(surroundings: Surroundings) -> Schema:
    """Return the columns of the rows that arrive at `data`."""
    schema = surroundings.inputs["data"]
    if schema is None:
        raise UnsoundError("the data is not a table", "connect a node that emits samples")
    return schema


class StoragePlan:
    """The number of rows that a buffer will store, and the memory that they will take; for `describe`."""

    def __init__(
        self, config: Any, schema: Schema, metadata_bytes: int = 0, arriving: int | None = None
    ) -> None:
        """`metadata_bytes` are those of one row; they are in memory, and count towards `size_bytes`.

        `arriving` is the number of rows in a token, if it is known.
        """
        self._config = config
        deduplicator = make_deduplicator(config, schema)
        _check_frames(config, schema, deduplicator)
        self._row_bytes = deduplicator.row_bytes(schema) if deduplicator else row_bytes(schema)
        try:
            self.rows = max_rows(config.size, config.size_bytes, self._row_bytes + metadata_bytes)
        except ValueError as wrong:
            raise UnsoundError(str(wrong), "increase `size_bytes`", "size_bytes") from wrong
        if config.batch_size > self.rows:
            raise UnsoundError(
                f"batches of {config.batch_size} rows are drawn from {self.rows}",
                "increase `size` or reduce `batch_size`",
                "batch_size" if self.rows == config.size else "size_bytes",
            )
        if arriving is not None and arriving > self.rows:
            key = "size" if self.rows == config.size else "size_bytes"
            what = f"{arriving} rows arrive with a token, and the newest {self.rows} are kept, so some are never drawn"
            raise UnsoundError(what, f"increase `{key}`, or let fewer rows arrive at a time", key)

    def memory_bytes(self, bookkeeping_bytes: int = 0) -> int:
        """Return the memory for all rows. `bookkeeping_bytes` are added for each row."""
        stored = make_storage(self._config.storage).memory_bytes(self.rows * self._row_bytes)
        return stored + self.rows * bookkeeping_bytes

    def state_bytes(self, bookkeeping_bytes: int = 0) -> int:
        """Return the bytes of all rows in a snapshot, wherever the rows are."""
        return self.rows * (self._row_bytes + bookkeeping_bytes)

    def nondeterministic(self, pacing: str = "") -> str:
        """Return why two runs may differ, which is due to the pacing, the storage, or both."""
        storage = make_storage(self._config.storage)
        return "; ".join(filter(None, (pacing, storage.nondeterministic)))


def make_deduplicator(config: Any, schema: Schema | None) -> FrameDeduplicator | None:
    """Make a deduplicator if frames are stacked or `store_once` is set; else return None."""
    columns = schema or {}
    stacked = {name: columns[name].frames or 1 for name in observation_pairs(columns)}
    frames = {name: config.frames or n for name, n in stacked.items()} or {
        "obs": config.frames or 1
    }
    enabled = config.store_once
    if enabled is None:
        enabled = any(n > 1 for n in frames.values())
    return FrameDeduplicator(frames) if enabled else None


def _check_frames(config: Any, schema: Schema, deduplicator: FrameDeduplicator | None) -> None:
    """Refuse `frames` that observations do not have, or that nothing stores once."""
    key = "store_once" if config.frames is None else "frames"
    if deduplicator is None and config.frames is not None:
        what = "`frames` has no effect, because equal frames are not stored once"
        raise UnsoundError(what, "leave it out, or give `store_once: true`", key)
    if deduplicator is not None and (why := deduplicator.misfit(schema)):
        raise UnsoundError(why, f"leave out `{key}`", key)


AnyRing = TypeVar("AnyRing", bound=Ring)


def make_ring(config: Any, ctx: Context, kind: Callable[..., AnyRing]) -> AnyRing:
    """Make the ring that a buffer's parameters describe, and report rows that an earlier process left in it."""
    storage = make_storage(config.storage)
    storage.bind(ctx)
    ring = kind(
        size=config.size,
        size_bytes=config.size_bytes,
        deduplicator=make_deduplicator(config, ctx.inputs.get("data")),
        storage=storage,
    )
    if ring.recovery_report:
        ctx.log(ring.recovery_report)
        ctx.report_irregularity("rows of an earlier process were continued with", ring.row_count)
    return ring
