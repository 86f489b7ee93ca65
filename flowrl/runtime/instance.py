"""An instance of a node, and its firing: the most frequently executed code of the engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from flowrl.core.context import Context
from flowrl.core.errors import NodeError
from flowrl.core.node import Node
from flowrl.core.ports import In, StateIn, StateOut
from flowrl.core.state import EMPTY_CLOCK, Count
from flowrl.graph.model import NodeSpec
from flowrl.machine.numerics import with_torch_threads
from flowrl.runtime.outputs import OutputPorts
from flowrl.runtime.records import RecordSource
from flowrl.runtime.site_state import Position, SiteState
from flowrl.runtime.streams import Push, PushInTurn, Queue, Take, discard, has_tokens, take_nothing

Observe = Callable[[Any], None]  # takes the result of a firing

ONE_ITERATION = Count(train_iters=1)
NOTHING: Any = object()  # stands for a token that could not be taken
# Failures of a node; it also fails if it calls sys.exit(). Ctrl-C is not a KeyboardInterrupt here: see `interruptions`.
RAISED = (Exception, SystemExit, KeyboardInterrupt)


class Instance:
    """One replica of a node with its context, inputs, outputs and counters.

    A firing takes tokens, calls the node, emits what the node counted and recorded, and pushes the node's tokens.
    """

    def __init__(
        self,
        spec: NodeSpec,
        node: Node,
        context: Context,
        site: SiteState,
        learned_columns: Mapping[str, Iterable[str]] = MappingProxyType({}),
    ) -> None:
        """`learned_columns` of each output must be finite: a learner learns from them."""
        self.spec, self.ctx, self.site = spec, context, site
        self._set_node(node)
        self.key = context.key
        self.role = spec.cls.role
        self.fired = 0
        self.order_index = 0  # its node's index in the order of the current schedule
        self.busy_s = 0.0
        self.counts = Count()
        self.inputs: list[tuple[list[Queue], int]] = []  # queues, and a firing's tokens of each
        self.stale_filters: list[Callable[[], None]] = []  # of inputs with a `max_staleness`
        self.shared_outputs: list[PushInTurn] = []  # whose tokens the replicas of a consumer share
        self.services: list[Context] = []  # of the services whose only client this instance is
        # The scheduler sets these hooks.
        self.on_record: Callable[[Instance, RecordSource, Any], None] = (
            lambda instance, source, record: None
        )
        self.on_count: Callable[[Instance, Count], None] = lambda instance, count: None
        self.fire: Callable[[], None] = self._fire
        self._outputs = OutputPorts(spec.cls, context, learned_columns, spec.fires_on_any)
        self._last_clock = EMPTY_CLOCK
        self._observers: deque[Observe] = deque()
        self.connect({}, {}, [])

    def connect(
        self,
        takes: Mapping[str, Take],
        pushes: Mapping[str, list[Push]],
        inputs: list[tuple[list[Queue], int]],
    ) -> None:
        """Connect the ports. This is repeated when a warm-up phase changes the active edges."""
        ports = self.spec.cls.ports
        self.inputs = inputs
        self._takes = [
            takes.get(n, take_nothing) for n, p in ports.items() if isinstance(p, In | StateIn)
        ]
        self._pushes = list(pushes.values())
        self._consumed_outputs = tuple(pushes)
        self.ctx.consumed_outputs = frozenset(pushes)
        self._call = self._call_and_check
        self._choose_fire()

    def _choose_fire(self) -> None:
        """Use the fast path for one input and at most one output of one token to one consumer."""
        pushes = [push for ends in self._pushes for push in ends]
        single = list(self._outputs.single.values())
        if (
            len(self._takes) == 1
            and len(pushes) <= 1
            and single in ([], [True])
            and not self.is_learner
            and not self.spec.fires_on_any
        ):
            self._take = self._takes[0]
            self._push = pushes[0] if pushes else discard
            self.fire = self._fire_simple
        else:
            self.fire = self._fire

    @property
    def is_learner(self) -> bool:
        """Whether each firing is a train iteration."""
        return self.role == "learner"

    @property
    def follows(self) -> bool:
        """Whether it belongs to a group whose records, counts and states are those of another replica."""
        return self.ctx.group is not None and self.ctx.replica > 0

    @property
    def position(self) -> Position:
        """The position of the current firing, or of the next one. The replicas of a group fire at one position."""
        replica = 0 if self.follows else self.ctx.replica
        return (*self.site.position_prefix, self.order_index, replica, self.fired)

    def replace_node(self, node: Node) -> None:
        self._set_node(node)
        self._call = self._call_and_check

    def _set_node(self, node: Node) -> None:
        self.node, threads = node, self.spec.torch_threads
        self._fire_node = node.fire if threads is None else with_torch_threads(node.fire, threads)

    def is_ready(self) -> bool:
        """Return whether the inputs hold the tokens of a firing. Called for nodes that may lack tokens."""
        for drop_stale in self.stale_filters:
            drop_stale()
        enough = any if self.spec.fires_on_any else all
        return enough(has_tokens(queues, rate) for queues, rate in self.inputs)

    # the firing

    def _fire_simple(self) -> None:
        ctx = self.ctx
        value = NOTHING
        try:
            value, clock = self._take()
            if clock is not self._last_clock:
                self._last_clock = clock
                ctx.clock = ctx.clock.merge(clock)
            result = self._call(value)
        except NodeError:
            raise  # another node failed to return its state
        except RAISED as error:
            raise self._node_error(error, [value]) from error
        if ctx.has_pending:
            self._emit_pending()
        self._push((result, ctx.clock))
        self.fired += 1
        now = _now()
        site = self.site
        self.busy_s += now - site.last_fired_s
        site.last_fired_s = now

    def _fire(self) -> None:
        self.complete(self.call(self.take_values()))

    # the parts of a firing, between which the replicas of a group wait for each other

    def take_values(self) -> Sequence[Any]:
        """Take the tokens of a firing."""
        try:
            return self._values()
        except NodeError:
            raise
        except RAISED as error:
            raise self._node_error(error, ()) from error

    def call(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Call the node with the tokens of a firing; return the tokens of each consumed output."""
        try:
            result = self._call(*values)
            return self._outputs.tokens(result, self._consumed_outputs)
        except NodeError:
            raise
        except RAISED as error:
            raise self._node_error(error, values) from error

    def complete(self, outputs: list[Sequence[Any]]) -> None:
        """Emit what the node counted and recorded, and push its tokens."""
        ctx = self.ctx
        if self.is_learner:
            ctx.clock = ctx.clock.add(ctx.counted_as, train_iters=1)
            self.on_count(self, ONE_ITERATION)
        if ctx.has_pending:
            self._emit_pending()
        clock = ctx.clock
        for pushes, tokens in zip(self._pushes, outputs, strict=True):
            for token in tokens:
                for push in pushes:
                    push((token, clock))
        self.fired += 1
        now = _now()
        self.busy_s += now - self.site.last_fired_s
        self.site.last_fired_s = now

    def _values(self) -> list[Any]:
        values = []
        ctx = self.ctx
        for take in self._takes:
            value, clock = take()
            values.append(value)
            if clock is not self._last_clock:
                self._last_clock = clock
                ctx.clock = ctx.clock.merge(clock)
        return values

    def observe_next(self, observe: Observe) -> None:
        """Call `observe` with the result of the next firing, in that firing. Any thread may call this."""
        self._observers.append(observe)
        self._call = self._call_and_check

    def newest_of(self, port: str, result: Any) -> Any:
        """Return the state, or the last token of an output in the current firing's result; None if there is none."""
        if isinstance(self.spec.port(port), StateOut):
            return self.node.state(port)
        if port not in self._consumed_outputs:
            return None
        tokens = self._outputs.tokens(result, self._consumed_outputs)
        return next(reversed(tokens[self._consumed_outputs.index(port)]), None)

    def _call_and_check(self, *values: Any) -> Any:
        """Call the node in the first firing, or in one that is observed, and check its result in full.

        Of other firings only numbers are checked.
        """
        result = self._fire_node(*values)
        self._outputs.check(result, self._consumed_outputs)
        self._outputs.check_numbers(result, self._consumed_outputs)
        is_checked = not self._outputs.learned_columns.keys().isdisjoint(self._consumed_outputs)
        self._call = self._call_and_check_numbers if is_checked else self._fire_node
        for _ in range(len(self._observers)):
            self._observers.popleft()(result)
        return result

    def _call_and_check_numbers(self, *values: Any) -> Any:
        result = self._fire_node(*values)
        self._outputs.check_numbers(result, self._consumed_outputs)
        return result

    # records

    def _emit_pending(self) -> None:
        """Emit the counts and records of the node and of the services that it called."""
        ctx = self.ctx
        if self.follows:
            self.discard_records()
            return
        for context in (ctx, *self.services):
            count = context.take_count()
            if count is not None:
                ctx.clock = ctx.clock.add(self.key, count.env_steps, count.episodes)
                old = self.counts
                self.counts = Count(old.env_steps + count.env_steps, old.episodes + count.episodes)
                self.on_count(self, count)
        for context in (ctx, *self.services):
            for record in context.take_records():
                self.on_record(self, self.record_source(context), record)

    def record_source(self, context: Context | None = None) -> RecordSource:
        """Return the source of a record of the current firing: this node, or a service that it called."""
        total = self.ctx.clock.total
        if context is None or context is self.ctx:
            return RecordSource(self.key, self.role, self.fired, total)
        return RecordSource(context.key, "", self.fired, total)

    def discard_records(self) -> None:
        """Discard the counts and records of a failed firing."""
        for context in (self.ctx, *self.services):
            context.take_count()
            context.take_records()

    def fire_with(self, values: Mapping[str, Any]) -> None:
        """Call the node as a firing does that takes these values from its inputs, and check its result."""
        result = self._call_and_check(*(values[name] for name in self._input_names))
        self._outputs.tokens(result, self._consumed_outputs)

    @property
    def _input_names(self) -> list[str]:
        ports = self.spec.cls.ports.items()
        return [name for name, port in ports if isinstance(port, In | StateIn)]

    def _node_error(self, error: BaseException, values: Sequence[Any]) -> NodeError:
        """Return the error of a firing, with what it took. `values` are incomplete if taking has failed."""
        site = self.site
        doing = f"firing {self.fired} ({site.phase}round {site.round})"
        failed = NodeError(self.key, doing, error)
        names = self._input_names
        if len(values) == len(names) and not any(value is NOTHING for value in values):
            failed.inputs = dict(zip(names, values, strict=True))
        return failed


_now = time.perf_counter
