"""Fires a part of a graph with the tokens that were recorded, and compares what it gives with what was recorded.

The site of a replay has the instances of this part, often only one, and the services that they call. As on one of
several sites, the scheduler leaves out all other firings. What would come from other sites comes from the recording,
and what would go to them is compared. What goes from one of the instances to another is passed on, and compared, too.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import MappingProxyType
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.ordering import exclusive_services_of
from flowrl.core.context import Record
from flowrl.core.state import State
from flowrl.graph.model import Edge, PortRef
from flowrl.graph.replica_pairs import ReplicaPair, replica_pairs_of
from flowrl.runtime.edge_factory import EdgeFactory, Replica, Versions
from flowrl.runtime.half_precision import EdgeRounding
from flowrl.runtime.instance import Instance
from flowrl.runtime.records import FailureRecord, RecordSource
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.site_state import Position
from flowrl.runtime.snapshot import Parts, load_instance, node_key
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import AwaitedQueue, Push, Queue, Take, Token
from flowrl.runtime.token_contents import decode_token, encode_token, first_difference
from flowrl.runtime.token_hashing import TokenHash, pair_numbers

PairNumbers = Mapping[tuple[PortRef, ReplicaPair], int]


class EndOfRecording(BaseException):
    """The instance would take a token that was not recorded, because the recording ends before."""


class ReplayDiffers(BaseException):
    """The instance gave something else than what was recorded."""


class RecordedTokens:
    """The recorded tokens by replica pair, read one after another."""

    def __init__(
        self, tokens_of: Callable[[int], Iterator[TokenHash]], pairs: Collection[int]
    ) -> None:
        """`tokens_of` yields the tokens of one pair. Other pairs than these count as not recorded."""
        self._tokens = {pair: tokens_of(pair) for pair in pairs}
        self._next = {pair: next(tokens, None) for pair, tokens in self._tokens.items()}

    def __contains__(self, pair: int) -> bool:
        return pair in self._tokens

    @property
    def is_over(self) -> bool:
        return not any(self._next.values())

    def peek(self, pair: int) -> TokenHash | None:
        """Return the next token of a pair, which stays there; None at the end of the recording."""
        return self._next[pair]

    def next_with_content(self, pair: int) -> TokenHash | None:
        """Return the next token of a pair, or the next version that was not read before, and skip what is between."""
        while (token := self._next[pair]) is not None and not token.content:
            self.take(pair)
        return token

    def take(self, pair: int) -> TokenHash:
        token = self._next[pair]
        if token is None:
            raise EndOfRecording
        self._next[pair] = next(self._tokens[pair], None)
        return token


@dataclass(slots=True)
class Comparison:
    """How many tokens and versions of each edge were equal."""

    equal: dict[str, int] = field(default_factory=dict)

    def compare(self, edge: str, what: str, recorded: TokenHash, token: Token) -> None:
        """Count a token that is equal to the recorded one; raise `ReplayDiffers` if it is not."""
        content = encode_token(token)
        if content != recorded.content:
            found = first_difference(decode_token(recorded.content), decode_token(content))
            if found:
                raise ReplayDiffers(f"{what} of {edge} differs from the recorded one: {found}")
        self.equal[edge] = self.equal.get(edge, 0) + 1


class RecordedInput(AwaitedQueue):
    """A queue that continues with recorded tokens."""

    def __init__(self, tokens: Collection[Token], recorded: RecordedTokens, pair: int) -> None:
        super().__init__(tokens)
        self._recorded, self._pair = recorded, pair

    def popleft(self) -> Token:
        self.fill(1)
        return super().popleft()

    def fill(self, tokens: int) -> None:
        while len(self) < tokens:
            self.append(decode_token(self._recorded.take(self._pair).content))


class ComparedQueue(deque[Token]):
    """A queue into an instance of the replay, or out of it: what is pushed is compared with what was recorded."""

    def __init__(
        self,
        edge: str,
        position: Callable[[], Position],
        recorded: RecordedTokens,
        pair: int,
        comparison: Comparison,
        tokens: Collection[Token] | None = None,
    ) -> None:
        """`tokens` are there already; None if the consumer is not replayed, so that nothing is kept."""
        super().__init__(tokens or ())
        self._keeps = tokens is not None
        self._edge, self._position, self._recorded = edge, position, recorded
        self._pair, self._comparison = pair, comparison

    def append(self, token: Token) -> None:
        self._compare(token)
        if self._keeps:
            super().append(token)

    def _compare(self, token: Token) -> None:
        if self._pair not in self._recorded or self._recorded.peek(self._pair) is None:
            return  # the edge was not recorded, or not so long
        recorded = self._recorded.take(self._pair)
        at = self._position()
        number = self._comparison.equal.get(self._edge, 0)
        if recorded.position != at:
            raise ReplayDiffers(
                f"token {number} of {self._edge} comes from firing {at[-1]}, and was recorded in firing "
                f"{recorded.position[-1]}"
            )
        what = f"token {number}, from firing {at[-1]} (round {at[0]}),"
        self._comparison.compare(self._edge, what, recorded, token)


class ComparedVersions:
    """Compares the versions of a state with those that one consumer read."""

    def __init__(
        self,
        edge: str,
        recorded: RecordedTokens,
        pair: int,
        comparison: Comparison,
        rounding: EdgeRounding | None,
    ) -> None:
        self._edge, self._recorded, self._pair = edge, recorded, pair
        self._comparison, self._rounding = comparison, rounding

    def compare(self, state: State) -> None:
        """Compare a version, if the consumer read it."""
        if self._rounding is not None:
            state = self._rounding.rounded_state(state)
        while (recorded := self._recorded.peek(self._pair)) is not None:
            if recorded.version > state.version:
                return
            self._recorded.take(self._pair)
            if recorded.version == state.version and recorded.content:
                what = f"version {state.version}"
                self._comparison.compare(self._edge, what, recorded, (state, state.clock))


class RecordedState:
    """The versions that an instance read, each from the firing on in which it was read first."""

    def __init__(
        self, position: Callable[[], Position], recorded: RecordedTokens, pair: int
    ) -> None:
        self._position, self._recorded, self._pair = position, recorded, pair
        self._current: Token | None = None
        self._last_round = -1  # of the last read; in each round, the first one was recorded

    def take(self) -> Token:
        now = self._position()
        while (following := self._recorded.peek(self._pair)) is not None:
            if following.position > now:
                break
            read = self._recorded.take(self._pair)
            self._last_round = read.position[0]
            if read.content:
                self._current = decode_token(read.content)
        if self._current is None or (following is None and now[0] > self._last_round):
            raise EndOfRecording
        return self._current


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
        self.position: Callable[[], Position] = lambda: ()  # of the current firing
        self.compared_versions: list[tuple[ComparedVersions, StateVersions]] = []
        services = exclusive_services_of(checked.graph, {node for node, _ in own})
        self._local = {*own, *product(services, {replica for _, replica in own})}
        self._state_inputs: dict[tuple[PortRef, int], Take] = {}
        self._recorded, self._comparison = recorded, comparison
        self._numbers: PairNumbers = pair_numbers(checked.graph)

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
                    str(edge),
                    lambda: self.position(),
                    self._recorded,
                    number,
                    self._comparison,
                    tokens,
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
            self._state_inputs[key] = RecordedState(
                lambda: self.position(), self._recorded, number
            ).take
        return self._state_inputs[key]

    def round_end_readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        compared = self._compared(edge, versions)
        return [lambda token, c=c: c.compare(token[0]) for c in compared]  # type: ignore[misc]

    def paced_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        compared = self._compared(edge, versions)
        return [lambda c=c: c.compare(versions.newest_whole()) for c in compared]  # type: ignore[misc]

    def lagged_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        compared = self._compared(edge, versions)
        return [lambda c=c: c.compare(versions.newest()) for c in compared]  # type: ignore[misc]

    def _compared(self, edge: Edge, versions: StateVersions) -> list[ComparedVersions]:
        """Return the comparisons of a state with what its consumers read, if that was recorded."""
        numbers = [
            self._numbers[edge.to, pair] for pair in replica_pairs_of(self._checked.graph, edge)
        ]
        found = [
            ComparedVersions(
                str(edge), self._recorded, number, self._comparison, self.rounding(edge)
            )
            for number in numbers
            if number in self._recorded
        ]
        self.compared_versions += [(one, versions) for one in found]
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
        edges.position = lambda: self.current_position
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
        for compared, versions in self._compared_versions:
            compared.compare(versions.newest())

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
