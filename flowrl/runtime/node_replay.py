"""Fires a part of a graph with the tokens that were recorded, and compares what it gives with what was recorded.

The site of a replay has the instances of this part, often only one, and the services that they call. As on one of
several sites, the scheduler leaves out all other firings. What would come from other sites comes from the recording,
and what would go to them is compared. What goes from one of the instances to another is passed on, and compared, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.ordering import exclusive_services_of
from flowrl.core.records import Record
from flowrl.graph.model import Edge, PortRef
from flowrl.graph.replica_pairs import ReplicaPair, replica_pairs_of
from flowrl.runtime.edge_factory import EdgeFactory, Replica, Versions
from flowrl.runtime.instance import Instance
from flowrl.runtime.recorded_edges import (
    ComparedQueue,
    ComparedVersions,
    Comparison,
    EndOfRecording,
    RecordedInput,
    RecordedState,
    RecordedTokens,
    ReplayDiffers,
)
from flowrl.runtime.records import FailureRecord, RecordSource
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.snapshot import Parts, load_instance, node_key
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import Push, Queue, Take
from flowrl.runtime.token_hashing import TokenHash, pair_numbers


class ReplayEdgeFactory(EdgeFactory):
    """The edge factory of a site with some instances and the services that only they call."""

    def __init__(
        self,
        checked: CheckedGraph,
        own: Collection[Replica],
        recorded: RecordedTokens,
        comparison: Comparison,
    ) -> None:
        super().__init__(checked)
        self.compared_versions: list[ComparedVersions] = []
        services = exclusive_services_of(checked.graph, {node for node, _ in own})
        self._local = {*own, *product(services, {replica for _, replica in own})}
        self._state_inputs: dict[tuple[PortRef, int], Take] = {}
        self._recorded, self._comparison = recorded, comparison
        self._numbers = pair_numbers(checked.graph)

    def is_local(self, node: str, replica: int) -> bool:
        return (node, replica) in self._local

    def make_queues(self, edge: Edge) -> dict[ReplicaPair, Queue]:
        queues: dict[ReplicaPair, Queue] = {}
        for pair in replica_pairs_of(self._checked.graph, edge):
            produces = self.is_local(edge.sources[pair[0]].node, pair[1])
            consumes = self.is_local(edge.to.node, pair[2])
            number = self._numbers[edge.to, pair]
            tokens = self._initial_tokens(edge) if consumes else None
            if produces:
                queues[pair] = ComparedQueue(
                    str(edge), self.site, self._recorded, number, self._comparison, tokens
                )
            elif tokens is not None:
                queues[pair] = RecordedInput(tokens, self._recorded, number)
        return queues

    def state_input(self, edge: Edge, replica: int, versions: Versions) -> Take:
        if edge.source in versions:
            return super().state_input(edge, replica, versions)
        key = edge.to, replica
        if key not in self._state_inputs:  # each phase of the warm-up connects the instances again
            number = self._numbers[edge.to, (0, 0, replica)]
            self._state_inputs[key] = RecordedState(self.site, self._recorded, number).take
        return self._state_inputs[key]

    def round_end_readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        return [compared.compare_token for compared in self._compared(edge, versions)]

    def paced_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        return [compared.compare_newest_whole for compared in self._compared(edge, versions)]

    def lagged_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        return [compared.compare_newest for compared in self._compared(edge, versions)]

    def _compared(self, edge: Edge, versions: StateVersions) -> list[ComparedVersions]:
        """Return the comparisons of a state with what its consumers read, if that was recorded."""
        numbers = [
            self._numbers[edge.to, pair] for pair in replica_pairs_of(self._checked.graph, edge)
        ]
        rounding = self.rounding(edge)
        found = [
            ComparedVersions(
                str(edge), versions, self._recorded, number, self._comparison, rounding
            )
            for number in numbers
            if number in self._recorded
        ]
        self.compared_versions += found
        return found


class NodeReplay(Scheduler):
    """Fires some instances for as long as their recorded tokens last."""

    def __init__(
        self,
        checked: CheckedGraph,
        seed: int,
        own: Collection[Replica],
        tokens_of: Callable[[int], Iterator[TokenHash]],
        after_rounds: int = 0,
        parts: Parts = MappingProxyType({}),
        last_iteration: int | None = None,
    ) -> None:
        """The recording began after so many rounds, with these parts of a snapshot.

        It ended with the train iteration `last_iteration` of the first learner, if that is known.
        """
        self.comparison = Comparison()
        self._outputs: dict[int, str] = {}  # the edges by the numbers of their replica pairs
        inputs = []
        by_edge = {edge.to: edge for edge in checked.graph.edges}
        for (to, pair), number in pair_numbers(checked.graph).items():
            if (by_edge[to].sources[pair[0]].node, pair[1]) in own:
                self._outputs[number] = str(by_edge[to])
            elif (to.node, pair[2]) in own:
                inputs.append(number)
        self._recorded = RecordedTokens(tokens_of, [*inputs, *self._outputs])
        edges = ReplayEdgeFactory(checked, own, self._recorded, self.comparison)
        super().__init__(checked, seed, edges)
        self._compared_versions = edges.compared_versions
        self._last_iteration, self._has_last_iteration = last_iteration, False
        learners = {node for node, _ in own} & {checked.graph.first_learner}
        self._ends_with_iteration = bool(learners) and last_iteration is not None
        self.first_firings: dict[str, int] = {}  # by instance
        if after_rounds:
            self.begin_after(after_rounds, parts)

    def replay(self) -> None:
        """Fire until the recording ends, or raise `ReplayDiffers`."""
        with contextlib.suppress(EndOfRecording):
            self.execute()
        for pair, edge in self._outputs.items():
            token = self._recorded.next_with_content(pair)
            if token is not None:
                what = "the next token" if token.version < 0 else f"version {token.version}"
                raise ReplayDiffers(
                    f"{what} of {edge} was recorded (round {token.position[0]}), and the replay ended before it"
                )

    def fire_again(self, rounds: int, parts: Parts, inputs: Mapping[str, Any]) -> None:
        """Fire the only instance once with these inputs, in the round after so many, with its part and its services'.

        Without parts, the node is as it is made. An error that it raises is passed on.
        """
        [instance] = self.instances.all()
        self.site.rounds, self.site.position_prefix = rounds, (rounds,)
        self._enter_phase(self._remaining_phases())
        if parts:
            for key, load in self.instances.service_loaders():
                load(parts[node_key(key)])
            load_instance(instance, parts[node_key(instance.key)].state_dict())
        instance.fire_with(inputs)

    # hooks of the scheduler

    def before_first_round(self) -> None:
        self.first_firings = {instance.key: instance.fired for instance in self.instances.all()}
        for compared in self._compared_versions:
            compared.compare_newest()

    def before_round(self) -> None:
        if self._recorded.is_over and not self._ends_with_iteration:
            raise EndOfRecording

    def after_firing(self) -> None:
        return None

    def after_iteration(self, learner: Instance) -> None:
        """End with the last iteration, unless its round went on: then other instances have outputs after it."""
        if learner.key == self.graph.first_learner and learner.fired == self._last_iteration:
            self._has_last_iteration = True
            if not any(map(self._recorded.next_with_content, self._outputs)):
                raise EndOfRecording

    def after_round(self, warm_up: bool) -> None:
        if self._has_last_iteration:
            raise EndOfRecording

    def end_without_rounds(self) -> None:
        raise EndOfRecording

    def on_record(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        """Leave records out: the recording has tokens only."""
