"""A runner: one instance of a node, and its firing. The hottest lines of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from flowrl.core.context import Context
from flowrl.core.errors import NodeError
from flowrl.core.node import Node
from flowrl.core.ports import In, StateIn
from flowrl.core.state import EMPTY_CLOCK, Count
from flowrl.graph.model import NodeSpec
from flowrl.runtime.outputs import OutputPorts
from flowrl.runtime.records import RecordSource
from flowrl.runtime.streams import Push, Queue, Take, has, nothing, nowhere
from flowrl.runtime.waits import Wait

Position = tuple[int, ...]

ONE_ITERATION = Count(train_iters=1)
RAISED = (Exception, SystemExit)  # what ends a firing: a node that calls sys.exit() has failed too


class SiteState:
    """One thread of execution: where it is in the program, and when its last firing ended."""

    __slots__ = ("last_fired_s", "phase", "position_prefix", "round", "rounds", "waiting", "waits")

    def __init__(self) -> None:
        self.phase = ""  # "warm-up 1, ", or nothing
        self.round = 0
        self.rounds = 0  # whole rounds so far, those of the warm-up too
        self.position_prefix: Position = (0,)  # where in the program: see `Engine.position`
        self.last_fired_s = time.perf_counter()  # the next firing's time starts here
        self.waits: list[Wait] = []  # all that it may ever have to wait for
        self.waiting: tuple[Wait, float] | None = None  # for what it waits now, and since when


class Instance:
    """Fires one node instance: takes tokens, calls the node, gives tokens, keeps accounts."""

    def __init__(self, spec: NodeSpec, node: Node, context: Context, site: SiteState) -> None:
        self.spec, self.node, self.ctx, self.site = spec, node, context, site
        self.key = context.key
        self.role = spec.cls.role
        self.fired = 0
        self.order_index = 0  # its node's place in the order of the part that it fires in
        self.busy_s = 0.0
        self.counts = Count()
        self.waits_for: list[
            tuple[list[Queue], int]
        ] = []  # queues, and what a firing takes of each
        self.drop_old: list[Callable[[], None]] = []  # of inputs that lose what is too old
        self.services: list[Context] = []  # of nodes that only this one calls: links make them one
        self.on_record: Callable[[Instance, RecordSource, Any], None] = (
            lambda instance, source, record: None
        )
        self.on_count: Callable[[Instance, Count], None] = lambda instance, count: None
        self.fire: Callable[[], None] = self._fire
        self._outputs = OutputPorts(spec.cls, context, spec.fires_on_any)
        self._last_clock = EMPTY_CLOCK
        self.wire({}, {}, [])

    def wire(
        self,
        takes: Mapping[str, Take],
        pushes: Mapping[str, list[Push]],
        waits_for: list[tuple[list[Queue], int]],
    ) -> None:
        """Connect the ports; called again when a phase makes other edges active."""
        ports = self.spec.cls.ports
        self.waits_for = waits_for
        self._takes = [
            takes.get(n, nothing) for n, p in ports.items() if isinstance(p, In | StateIn)
        ]
        self._pushes = list(pushes.values())
        self._wanted = tuple(pushes)
        self.ctx.consumed_outputs = frozenset(pushes)
        self._call = self._first_call
        self._wire_simple()

    def _wire_simple(self) -> None:
        """One input and at most one output, of one token for one consumer, go a shorter way."""
        pushes = [push for ends in self._pushes for push in ends]
        single = list(self._outputs.single.values())
        if (
            len(self._takes) == 1
            and len(pushes) <= 1
            and single in ([], [True])
            and not self.learns
            and not self.spec.fires_on_any
        ):
            self._take = self._takes[0]
            self._push = pushes[0] if pushes else nowhere
            self.fire = self._fire_simple
        else:
            self.fire = self._fire

    @property
    def learns(self) -> bool:
        """Whether a firing is a train iteration."""
        return self.role == "learner"

    def renew(self, node: Node) -> None:
        """Go on with a fresh instance."""
        self.node = node
        self._call = self._first_call

    def ready(self) -> bool:
        """Whether every input has what a firing takes (asked only where tokens may be dropped)."""
        for drop in self.drop_old:
            drop()
        enough = any if self.spec.fires_on_any else all
        return enough(has(queues, rate) for queues, rate in self.waits_for)

    # the firing

    def _fire_simple(self) -> None:
        """One input, at most one output of one token."""
        ctx = self.ctx
        try:
            value, clock = self._take()
            if clock is not self._last_clock:
                self._last_clock = clock
                ctx.clock = ctx.clock.merge(clock)
            gave = self._call(value)
        except NodeError:
            raise  # another node's, met while its state was asked for
        except RAISED as error:
            raise self._failed(error) from error
        if ctx.has_pending:
            self._settle()
        self._push((gave, ctx.clock))
        self.fired += 1
        now = _now()
        site = self.site
        self.busy_s += now - site.last_fired_s
        site.last_fired_s = now

    def _fire(self) -> None:
        """Any number of inputs and outputs."""
        ctx = self.ctx
        try:
            gave = self._call(*self._values())
            given = self._outputs.tokens(gave, self._wanted)
        except NodeError:
            raise
        except RAISED as error:
            raise self._failed(error) from error
        if self.learns:
            ctx.clock = ctx.clock.add(self.key, train_iters=1)
            self.on_count(self, ONE_ITERATION)
        if ctx.has_pending:
            self._settle()
        clock = ctx.clock
        for pushes, tokens in zip(self._pushes, given, strict=True):
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

    def _first_call(self, *values: Any) -> Any:
        """What the first firing gives is looked at closely; later ones call the node directly."""
        gave = self.node.fire(*values)
        self._outputs.check(gave, self._wanted)
        self._call = self.node.fire
        return gave

    def _settle(self) -> None:
        """What the firing counted and recorded, and the services that it called."""
        ctx = self.ctx
        for context in (ctx, *self.services):
            counts = context.take_count()
            if counts is not None:
                ctx.clock = ctx.clock.add(self.key, counts.env_steps, counts.episodes)
                old = self.counts
                self.counts = Count(
                    old.env_steps + counts.env_steps, old.episodes + counts.episodes
                )
                self.on_count(self, counts)
        for context in (ctx, *self.services):
            for record in context.take_records():
                self.on_record(self, self.record_source(context), record)

    def record_source(self, context: Context | None = None) -> RecordSource:
        """This node in the firing that it is in; or a service that was called in it."""
        total = self.ctx.clock.total
        if context is None or context is self.ctx:
            return RecordSource(self.key, self.role, self.fired, total)
        return RecordSource(context.key, "", self.fired, total)

    def forget(self) -> None:
        """A firing failed: what was counted and told in it does not count."""
        for context in (self.ctx, *self.services):
            context.take_count()
            context.take_records()

    def _failed(self, error: BaseException) -> NodeError:
        site = self.site
        return NodeError(self.key, f"firing {self.fired} ({site.phase}round {site.round})", error)


_now = time.perf_counter
