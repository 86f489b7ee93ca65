"""Drops tokens that are older than the `max_staleness` of their edge."""

from __future__ import annotations

from collections.abc import Callable

from flowrl.checks.serial_program import Schedule
from flowrl.core.records import IrregularityRecord
from flowrl.core.state import NO_COUNTS
from flowrl.graph.model import Edge
from flowrl.runtime.instance import Instance
from flowrl.runtime.streams import AwaitedQueue, Queue


def stale_token_filters(
    learner: Instance, schedule: Schedule, queues_into: Callable[[Edge, int], list[Queue]]
) -> list[Callable[[], None]]:
    """Return the functions that drop stale tokens, one for each input of a learner with a `max_staleness`."""
    name, replica = learner.spec.name, learner.ctx.replica
    edges = [
        e for e in schedule.edges if e.to.node == name and e.to in schedule.stale_dropping_inputs
    ]
    return [
        StaleTokenFilter(e, queues_into(e, replica), learner, schedule.firings[name]).drop_stale
        for e in edges
    ]


class StaleTokenFilter:
    """Drops the stale tokens of one input of a learner.

    A token's age is the number of the learner's firings since the version of its state in the token's causal past.
    """

    def __init__(
        self, edge: Edge, queues: list[Queue], learner: Instance, firings_per_round: int
    ) -> None:
        assert edge.max_staleness is not None
        self._queues, self._learner = queues, learner
        self._max_age = (edge.max_staleness + 1) * firings_per_round  # in train iterations
        self._irregularity = f"tokens of {edge} were staler than its max_staleness of {edge.max_staleness}, and dropped"

    def drop_stale(self) -> None:
        """Drop the tokens at the head of the queues that are too old, without waiting for tokens."""
        dropped = sum(map(self._drop_from, self._queues))
        if dropped:
            learner = self._learner
            record = IrregularityRecord(self._irregularity, dropped)
            learner.on_record(learner, learner.record_source(), record)

    def _drop_from(self, queue: Queue) -> int:
        dropped = 0
        while len(queue) and self._is_stale(queue):
            queue.popleft()
            dropped += 1
        return dropped

    def _is_stale(self, queue: Queue) -> bool:
        if isinstance(queue, AwaitedQueue):
            queue.fill(1)  # moves a token from the channel into the deque; never waits here
        clock = queue[0][1]
        made_with = clock.counts.get(self._learner.key, NO_COUNTS).train_iters
        return self._learner.fired - made_with >= self._max_age
