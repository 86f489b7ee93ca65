"""The parameters that buffers have in common."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import Config, param, part
from flowrl.core.node import Surroundings, UnsoundError
from flowrl.nodes.buffers.capacity import PATTERN
from flowrl.nodes.buffers.pace import DEFAULT_BATCHES


class Giving(Config):
    """What a buffer gives, and tells."""

    updates_per_push: int = param(
        1, "batches for each token that comes in; free-running: of one firing at most", ge=1
    )
    log_every_pushes: int = param(100, "tokens from one line of metrics to the next", ge=1)


class Storing(Giving):
    """And how it keeps rows."""

    size: int = param(20_000, "rows that are kept; newer ones replace the oldest", ge=1)
    size_bytes: str | None = param(None, "and no more than so much: 800MB", pattern=PATTERN)
    store_once: bool | None = param(None, "of equal frames one; default: of stacked frames")
    frames: int | None = param(None, "frames on axis 0 of obs; default: as the env says", ge=1)
    storage: Any = part(
        "storage", "where the rows lie: memory, mapped, compressed", default="memory"
    )


class Pacing(Storing):
    """And in which mode it runs: lockstep, or free-running with a band."""

    samples_per_insert: float | None = param(
        None, "free-running: rows that are drawn for each that comes; default: fixed rates", gt=0
    )
    band_rows: int | None = param(
        None, "free-running: drawn rows it may be off by, either way; default: 32 batches", ge=1
    )
    ahead_batches: int | None = param(
        None, "free-running: batches that are under way to the learner; default: 2", ge=1
    )
    first_rows: int | None = param(
        None, "free-running: rows that come before the first batch; default: 1000", ge=1
    )


def sound_pace(config: Any, surroundings: Surroundings) -> str:
    """Why the buffer is not deterministic, if it is not; what is told must not be ignored."""
    if config.samples_per_insert is None:
        for name in ("band_rows", "ahead_batches", "first_rows"):
            if getattr(config, name) is not None:
                hint = "say `samples_per_insert`, or leave it out"
                raise UnsoundError(f"`{name}` is for free-running buffers", hint, name)
        return ""
    if "priorities" not in surroundings.inputs:
        raise UnsoundError(
            "a free-running buffer must hear when a batch is done",
            "connect `learner.priorities -> buffer.priorities`",
            "samples_per_insert",
        )
    band = config.band_rows or DEFAULT_BATCHES * config.batch_size
    each = f"{config.samples_per_insert:g} rows drawn for each that comes"
    return f"free-running, {each}, give or take {band}"


def sound_uniform_pace(config: Any, surroundings: Surroundings) -> str:
    """The same of a buffer that draws uniformly: priorities only say that a batch is done."""
    free = sound_pace(config, surroundings)
    if "priorities" in surroundings.inputs and not free:
        raise UnsoundError(
            "it draws uniformly, and does nothing with priorities",
            "connect them to an advanced_buffer, or say `samples_per_insert`: they then pace it",
        )
    return free
