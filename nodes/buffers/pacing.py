"""Pacers decide how many batches a firing of a buffer emits: a fixed number, or by a ratio of samples to inserts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.counters import Counters

DEFAULT_BAND_BATCHES = 32
DEFAULT_AHEAD_BATCHES = 2
DEFAULT_FIRST_ROWS = 1000


class OutputConfig(Config):
    """The output of a buffer for each token."""

    updates_per_push: int = param(
        1, "batches for each token that arrives; free-running: the most batches of a firing", ge=1
    )
    log_every_pushes: int = param(100, "tokens from one report of metrics to the next", ge=1)


class PacingConfig(OutputConfig):
    """The choice between lockstep (fixed rates) and free-running (a ratio within a band)."""

    samples_per_insert: float | None = param(
        None, "free-running: rows drawn for each row that arrives; default: fixed rates", gt=0
    )
    band_rows: int | None = param(
        None, "free-running: allowed deviation in drawn rows; default: 32 batches", ge=1
    )
    ahead_batches: int | None = param(
        None, "free-running: batches that are in transit to the learner; default: 2", ge=1
    )
    first_rows: int | None = param(
        None, "free-running: rows that must arrive before the first batch; default: 1000", ge=1
    )


class FixedPacer:
    """Emits `updates_per_push` batches in each firing."""

    def __init__(self, config: Any) -> None:
        self._batches = config.updates_per_push

    def count_learned(self, tokens: Sequence[Batch]) -> None:
        """Do nothing: fixed rates do not depend on the learner."""

    def check_insert(self, count: int) -> None:
        """Accept any number of rows: the rates of the graph pace this buffer."""

    def take_due(self, counters: Counters) -> int:
        """Return the number of batches to emit in this firing."""
        return int(self._batches)

    def metrics(self, counters: Counters) -> dict[str, float]:
        """Return no metrics: the graph states the rates."""
        return {}

    def state_dict(self) -> int:
        return 0

    def load_state_dict(self, state: int) -> None:
        pass


class RatioPacer:
    """Keeps the ratio of samples to inserts within a band by waiting; nothing is dropped.

    Reverb's rate limiter `SampleToInsertRatio` has the same purpose. The learner requests a batch whenever it has
    finished one; the batch is emitted if the band allows it. If too few rows were drawn, batches are emitted without a
    request: the learner's full queue then blocks the buffer, and the buffer blocks the collector.
    """

    def __init__(self, config: Any, context: Context, most_waiting: int = 0) -> None:
        """No batch is requested before the first token of priorities, which is empty.

        `most_waiting` of the rows that have arrived may not be drawn yet.
        """
        self.ratio, self.batch_size = config.samples_per_insert, config.batch_size
        self.band_rows = config.band_rows or DEFAULT_BAND_BATCHES * config.batch_size
        self.ahead_batches = config.ahead_batches or DEFAULT_AHEAD_BATCHES
        least_rows = config.batch_size + most_waiting
        self.first_rows = max(config.first_rows or DEFAULT_FIRST_ROWS, least_rows)
        self.max_batches = config.updates_per_push
        self.requested = 0  # batches; negative where some were emitted without request
        self._context = context
        # "rows" while the learner is idle, "learner" while the collector is idle.
        self._waits_for = ""
        self._waited_s = {"rows": 0.0, "learner": 0.0}
        self._last_firing_s = self._last_metrics_s = context.now_s()
        self._last_counts = (0, 0)  # pushed and sampled at the last report of metrics

    def count_learned(self, tokens: Sequence[Batch]) -> None:
        """Count the request of each token: one batch. The empty first token requests `ahead_batches`."""
        now = self._context.now_s()
        if self._waits_for:
            self._waited_s[self._waits_for] += now - self._last_firing_s
        self._last_firing_s = now
        self.requested += sum(1 if len(token) else self.ahead_batches for token in tokens)

    def check_insert(self, count: int) -> None:
        """Refuse a token for which one firing cannot emit enough batches to keep the band."""
        if too_many := _too_many_inserts(count, self.ratio, self.max_batches, self.batch_size):
            raise ValueError(f"{self._context.key}: {'; '.join(too_many)}")

    def take_due(self, counters: Counters) -> int:
        """Return the number of batches to emit: those that the band demands, or else those requested within it."""
        least, most = self._allowed(counters)
        count = max(0, min(max(least, min(self.requested, most)), self.max_batches))
        self.requested -= count
        self._waits_for = "rows" if self.requested > 0 else "learner" if self.requested < 0 else ""
        return count

    def metrics(self, counters: Counters) -> dict[str, float]:
        """Return the ratio, its band, waiting times and throughput. Times are by the clock, for reports only.

        While the buffer waits for rows, the learner is idle; while it waits for the learner, the collector is idle.
        """
        now, inserted = self._context.now_s(), max(counters.pushed - self.first_rows, 1)
        elapsed_s = max(now - self._last_metrics_s, 1e-9)
        pushed, sampled = self._last_counts
        self._last_metrics_s, self._last_counts = now, (counters.pushed, counters.sampled)
        return {
            "samples_per_insert": counters.sampled / inserted,
            "samples_per_insert_least": max(self.ratio - self.band_rows / inserted, 0.0),
            "samples_per_insert_most": self.ratio + self.band_rows / inserted,
            "waited_for_rows_s": self._waited_s["rows"],
            "waited_for_learner_s": self._waited_s["learner"],
            "pushed_per_s": (counters.pushed - pushed) / elapsed_s,
            "sampled_per_s": (counters.sampled - sampled) / elapsed_s,
        }

    def _allowed(self, counters: Counters) -> tuple[int, int]:
        """Return the least and the most batches that keep the ratio within the band."""
        if counters.pushed < self.first_rows:
            return 0, 0
        missing = (counters.pushed - self.first_rows) * self.ratio - counters.sampled
        least, most = missing - self.band_rows, missing + self.band_rows
        return int(least // self.batch_size), int(most // self.batch_size)

    def state_dict(self) -> int:
        return self.requested

    def load_state_dict(self, state: int) -> None:
        self.requested = int(state)


def make_pacer(config: Any, context: Context, most_waiting: int = 0) -> FixedPacer | RatioPacer:
    """Make the pacer that a buffer's parameters describe; `most_waiting` rows may not be drawn yet."""
    if config.samples_per_insert is None:
        return FixedPacer(config)
    return RatioPacer(config, context, most_waiting)


def _too_many_inserts(
    count: int, ratio: float, most_batches: int, batch_size: int
) -> tuple[str, str] | None:
    """What is wrong, and how to mend it, if a firing cannot emit the batches for the rows of a token."""
    due = count * ratio
    if due <= most_batches * batch_size:
        return None
    what = (
        f"{count} rows arrive with a token, for which {due:.6g} rows must be drawn, but a firing emits at most "
        f"{most_batches} batches of {batch_size}"
    )
    return what, f"write `updates_per_push: {math.ceil(due / batch_size)}`, or let fewer be drawn"


def check_pacing(config: Any, surroundings: Surroundings, rows: int | None = None) -> str:
    """Refuse parameters that have no effect, or cannot be kept; return why the pacing is nondeterministic, if it is.

    `rows` are those that arrive with a token, if it is rows that are drawn, and their number is known.
    """
    if config.samples_per_insert is None:
        for name in ("band_rows", "ahead_batches", "first_rows"):
            if getattr(config, name) is not None:
                hint = "set `samples_per_insert`, or leave it out"
                raise UnsoundError(f"`{name}` is only for free-running buffers", hint, name)
        return ""
    if "priorities" not in surroundings.inputs:
        raise UnsoundError(
            "a free-running buffer needs `priorities`, which report that a batch was learned",
            "connect `learner.priorities -> buffer.priorities`",
            "samples_per_insert",
        )
    most, size = config.updates_per_push, config.batch_size
    if too_many := _too_many_inserts(rows or 0, config.samples_per_insert, most, size):
        raise UnsoundError(*too_many, "samples_per_insert")
    band = config.band_rows or DEFAULT_BAND_BATCHES * config.batch_size
    ratio = f"{config.samples_per_insert:g} rows drawn for each row that arrives"
    return f"free-running, {ratio}, within {band} rows"


def check_uniform_pacing(config: Any, surroundings: Surroundings, rows: int | None = None) -> str:
    """Do the same as `check_pacing` for a buffer that draws uniformly, which priorities can only pace."""
    reason = check_pacing(config, surroundings, rows)
    if "priorities" in surroundings.inputs and not reason:
        raise UnsoundError(
            "the buffer draws uniformly, so priorities have no effect",
            "connect them to an advanced_buffer, or set `samples_per_insert`; they then pace the buffer",
        )
    return reason
