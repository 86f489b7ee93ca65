"""Tokens that are too old when their turn comes: dropped, counted and told."""

from __future__ import annotations

from collections.abc import Callable

from flowrl.checks.serial_program import Schedule
from flowrl.core.context import IrregularityRecord
from flowrl.core.state import NO_COUNTS
from flowrl.graph.model import Edge
from flowrl.runtime.instance import Instance
from flowrl.runtime.streams import AwaitedQueue, Queue


def stale_token_filters(
    learner: Instance, schedule: Schedule, queues_into: Callable[[Edge, int], list[Queue]]
) -> list[Callable[[], None]]:
    """What drops tokens that are too old, input by input."""
    name, replica = learner.spec.name, learner.ctx.replica
    edges = [
        e for e in schedule.edges if e.to.node == name and e.to in schedule.stale_dropping_inputs
    ]
    return [
        StaleTokenFilter(e, queues_into(e, replica), learner, schedule.firings[name]).drop
        for e in edges
    ]


class StaleTokenFilter:
    """One input of a learner: how old a token is says how often the learner fired since the version in its past."""

    def __init__(self, edge: Edge, queues: list[Queue], learner: Instance, each_round: int) -> None:
        assert edge.max_staleness is not None
        self._queues, self._learner = queues, learner
        self._oldest = (edge.max_staleness + 1) * each_round  # train iterations
        self._what = f"tokens of {edge} were staler than its max_staleness of {edge.max_staleness}, and dropped"

    def drop(self) -> None:
        """Drop what has become too old; who gave it is not waited for."""
        dropped = sum(map(self._dropped_of, self._queues))
        if dropped:
            learner = self._learner
            learner.on_record(
                learner, learner.record_source(), IrregularityRecord(self._what, dropped)
            )

    def _dropped_of(self, queue: Queue) -> int:
        dropped = 0
        while len(queue) and self._is_old(queue):
            queue.popleft()
            dropped += 1
        return dropped

    def _is_old(self, queue: Queue) -> bool:
        if isinstance(queue, AwaitedQueue):
            queue.fill(1)  # one is here, somewhere
        clock = queue[0][1]
        made_with = clock.counts.get(self._learner.key, NO_COUNTS).train_iters
        return self._learner.fired - made_with >= self._oldest
