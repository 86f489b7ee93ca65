"""The queue buffer: emits rows in the order of their arrival, each a fixed number of times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Rows, as_batch, row_bytes
from flowrl.core.config import param
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.core.row_order import with_marked_end
from flowrl.nodes.buffers.counters import Counters
from flowrl.nodes.buffers.pacing import OutputConfig
from flowrl.nodes.buffers.sampling.uniform import requested_size
from flowrl.nodes.buffers.storage.plan import input_schema
from flowrl.nodes.nstep import nstep_policy, nstep_rule, with_summed_rewards


class QueueBuffer(Node):
    """First in, first out, for learners that need new rows. Nothing is dropped.

    Rows keep their order. Where a batch ends within an episode, its final row is marked as `last`. If the policy sums
    rewards (`nstep`), windows of rewards end with the token.
    """

    may_end_run = False
    data = In("samples")
    batches = Out("samples", rate="updates_per_push")

    class Config(OutputConfig):
        policy: Any = nstep_policy()
        size: int = param(20_000, "rows that may wait; the run fails if there are more", ge=1)
        batch_size: int = param(64, "rows in each batch", ge=1)
        max_use: int = param(1, "batches that each row is emitted in", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        if config.batch_size > config.size:
            what = f"batches of {config.batch_size} rows are taken from at most {config.size} rows"
            raise UnsoundError(what, "increase `size` or reduce `batch_size`", "batch_size")
        _check_balance(config, surroundings.rows.get("data"))
        schema = input_schema(surroundings)
        rule = nstep_rule(config.policy, schema)
        schema = schema if rule is None else rule.summed_schema(schema)
        return Facts(
            outs={"batches": schema},
            rows={"batches": config.batch_size},
            cuts_episodes=frozenset({"batches"}),
            needs_order=frozenset({"data"} if rule else ()),
            needs_rows={"data": (_least_rows(config), "batch_size")},
            memory_bytes=config.size * row_bytes(schema),
            state_bytes=config.size * row_bytes(schema),
            checks_numbers=True,
        )

    def setup(self) -> None:
        self._rule = nstep_rule(self.config.policy, self.ctx.inputs.get("data"))
        self._waiting: list[Batch] = []
        self._current: Batch | None = None  # the batch that is being emitted
        self._current_uses = 0  # the number of times that it was emitted
        self.counters = Counters()

    def fire(self, data: Batch) -> list[Batch]:
        """Append rows, and emit the oldest rows."""
        c = self.config
        self.push(data)
        if not self.ctx.is_consumed("batches"):
            return []
        batches = self.draw(c.updates_per_push, c.batch_size)
        if self.counters.metrics_due(c.log_every_pushes):
            self.ctx.metrics(self.metrics())
        return batches

    @property
    def count(self) -> int:
        """The number of rows that wait."""
        return sum(map(len, self._waiting))

    def push(self, data: Batch | Rows) -> int:
        """Append rows; return their number."""
        data = as_batch(f"{self.ctx.key}.push", data)
        if self.count + len(data) > self.config.size:
            raise ValueError(
                f"{self.ctx.key}: {self.count} rows wait and {len(data)} arrived, which exceeds the size of "
                f"{self.config.size}; emit more rows for each token (`updates_per_push`, `batch_size`)"
            )
        if len(data):
            rule = self._rule
            self._waiting.append(data if rule is None else with_summed_rewards(data, rule))
        self.counters.pushes += 1
        self.counters.pushed += len(data)
        return len(data)

    def sample(self, batch_size: int | None = None) -> Batch:
        """Return the next batch. Each batch is emitted `max_use` times; then its rows are removed."""
        if self._current is None:
            self._current = self._take(
                requested_size(self.ctx.key, batch_size, self.config.batch_size)
            )
        batch = self._current
        self._current_uses += 1
        self.counters.sampled += len(batch)
        if self._current_uses == self.config.max_use:
            self._current, self._current_uses = None, 0
        return batch

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        return [self.sample(batch_size) for _ in range(batches)]

    def metrics(self) -> dict[str, float]:
        return self.counters.metrics("rows", self.count)

    def rows(self) -> Batch:
        """Return all rows that wait, in order, as a dataset; rewards may be summed already."""
        return Batch.concat(self._waiting) if self._waiting else Batch({})

    def clear(self) -> None:
        self._waiting, self._current, self._current_uses = [], None, 0

    def _take(self, rows: int) -> Batch:
        if self.count < rows:
            raise ValueError(
                f"{self.ctx.key}: a batch takes {rows} rows, but {self.count} wait; increase the "
                "collector's `n_sample`, or emit fewer rows for each token"
            )
        taken: list[Batch] = []
        while rows:  # takes views, so that only the emitted rows are copied
            token = self._waiting.pop(0)
            taken.append(token.take(slice(rows)))
            if len(token) > rows:
                self._waiting.insert(0, token.take(slice(rows, None)))
            rows -= len(taken[-1])
        return with_marked_end(Batch.concat(taken))

    def state_dict(self) -> dict[str, Any]:
        waiting = Batch.concat(self._waiting) if self._waiting else None
        return {
            "waiting": None if waiting is None else dict(waiting.columns),
            "current": None if self._current is None else dict(self._current.columns),
            "current_uses": self._current_uses,
            "counters": self.counters.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tables = {
            key: None
            if (table := state[key]) is None
            else Batch({k: np.array(v) for k, v in table.items()})
            for key in ("waiting", "current")
        }
        self._waiting = [] if tables["waiting"] is None else [tables["waiting"]]
        self._current = tables["current"]
        self._current_uses = int(state["current_uses"])
        self.counters = Counters(*state["counters"])


def _check_balance(config: Any, arriving: int | None) -> None:
    """Refuse a queue that grows or shrinks with each token of so many rows, so that the run would fail some time."""
    emitted = Fraction(config.updates_per_push * config.batch_size, config.max_use)
    if arriving is None or emitted == arriving:
        return
    uses, batches = config.max_use, Fraction(arriving * config.max_use, config.batch_size)
    mended = f"`updates_per_push: {batches}`"
    if batches.denominator != 1:
        mended = f"`batch_size: {arriving}` and `updates_per_push: {uses}`"
    what = (
        f"{arriving} rows arrive with a token, and {float(emitted):g} leave it (batch_size * updates_per_push / "
        f"max_use), so it would {'overflow' if emitted < arriving else 'run out of rows'}"
    )
    raise UnsoundError(what, f"take {mended}", "updates_per_push")


def _least_rows(config: Any) -> int:
    """The rows that must be there at the first firing, so that a balanced queue has enough rows at every firing.

    Of the uses that firings begin with, the most that are left of a batch begun before are `max_use` less the greatest
    common divisor of both numbers.
    """
    uses, batches = config.max_use, config.updates_per_push
    ahead = uses - math.gcd(batches, uses)
    return math.ceil(Fraction(config.batch_size * (batches + ahead), uses))
