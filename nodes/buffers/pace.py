"""How many batches a firing gives: in lockstep always as many, free-running what a band allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.context import Context
from flowrl.nodes.buffers.tally import Tally

DEFAULT_BATCHES = 32  # of the band, either way


class Lockstep:
    """Fixed rates."""

    def __init__(self, config: Any) -> None:
        self._batches = config.updates_per_push

    def heard(self, tokens: Sequence[Batch]) -> None:
        """Batches are given whether or not others are done."""

    def came(self, rows: int) -> None:
        """However many there are."""

    def due(self, tally: Tally) -> int:
        """The batches of this firing."""
        return int(self._batches)

    def metrics(self, tally: Tally) -> dict[str, float]:
        """Nothing that the graph does not say."""
        return {}

    def state(self) -> int:
        """Nothing."""
        return 0

    def load(self, state: int) -> None:
        """Nothing."""


class Band:
    """So many rows drawn for each that comes, give or take a band; kept by waiting, nothing is dropped.

    A batch is given when the learner has done one, while the band allows it. Where too few rows
    were drawn, batches are given unasked: the learner's full queue then blocks the buffer, and the
    buffer whoever collects.
    """

    def __init__(self, config: Any, context: Context) -> None:
        """Nothing is asked for before the first token of priorities, which is an empty one."""
        self.ratio, self.batch_size = config.samples_per_insert, config.batch_size
        self.rows = config.band_rows or DEFAULT_BATCHES * config.batch_size
        self.ahead = config.ahead_batches or 2
        self.first = max(config.first_rows or 1000, config.batch_size)
        self.most = config.updates_per_push
        self.asked = 0  # batches; less than nothing where some were given unasked
        self._context = context
        self._waits_for = ""  # what holds the other side up: rows, or the learner
        self._waited_s = {"rows": 0.0, "learner": 0.0}
        self._seen_s = self._told_s = context.now_s()
        self._told = (0, 0)  # pushed and sampled, when metrics were told last

    def heard(self, tokens: Sequence[Batch]) -> None:
        """Batches that the learner has done; with an empty token it begins, and wants some ahead."""
        now = self._context.now_s()
        if self._waits_for:
            self._waited_s[self._waits_for] += now - self._seen_s
        self._seen_s = now
        self.asked += sum(1 if len(token) else self.ahead for token in tokens)

    def came(self, rows: int) -> None:
        """A token must not bring more than a firing can give for it, else the band is lost."""
        due = rows * self.ratio
        if due > self.most * self.batch_size:
            raise ValueError(
                f"{self._context.key}: {rows} rows came, for which {due:.0f} are due, and a firing "
                f"gives {self.most} batches of {self.batch_size}; make `updates_per_push` larger"
            )

    def due(self, tally: Tally) -> int:
        """What the band demands, or else what is asked for and it allows."""
        least, most = self._band(tally)
        count = max(0, min(max(least, min(self.asked, most)), self.most))
        self.asked -= count
        self._waits_for = "rows" if self.asked > 0 else "learner" if self.asked < 0 else ""
        return count

    def metrics(self, tally: Tally) -> dict[str, float]:
        """The band and where in it the buffer is; by the clock, for reports only: waits and speed.

        While it waits for rows the learner stands still, and while for the learner, who collects.
        """
        now, inserted = self._context.now_s(), max(tally.pushed - self.first, 1)
        past_s = max(now - self._told_s, 1e-9)
        pushed, sampled = self._told
        self._told_s, self._told = now, (tally.pushed, tally.sampled)
        return {
            "samples_per_insert": tally.sampled / inserted,
            "samples_per_insert_least": max(self.ratio - self.rows / inserted, 0.0),
            "samples_per_insert_most": self.ratio + self.rows / inserted,
            "waited_for_rows_s": self._waited_s["rows"],
            "waited_for_learner_s": self._waited_s["learner"],
            "pushed_per_s": (tally.pushed - pushed) / past_s,
            "sampled_per_s": (tally.sampled - sampled) / past_s,
        }

    def _band(self, tally: Tally) -> tuple[int, int]:
        """Batches that must be given now, and that may be."""
        if tally.pushed < self.first:
            return 0, 0
        due = (tally.pushed - self.first) * self.ratio - tally.sampled
        return int((due - self.rows) // self.batch_size), int((due + self.rows) // self.batch_size)

    def state(self) -> int:
        """What is asked for."""
        return self.asked

    def load(self, state: int) -> None:
        """Go on from there."""
        self.asked = int(state)


def pace_of(config: Any, context: Context) -> Lockstep | Band:
    """Free-running where samples for each insert are said."""
    free = getattr(config, "samples_per_insert", None) is not None
    return Band(config, context) if free else Lockstep(config)
