"""A runner: one instance of a node, its queues, and the firing itself. The hottest lines of the engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

from flowrl.batch import Batch
from flowrl.context import Context, Record
from flowrl.graph import NodeSpec
from flowrl.node import Node
from flowrl.ports import In, Out, StateIn
from flowrl.state import START, Clock, Count, State

Token = tuple[Any, Clock]  # a value, and the clock of its causal past
Queue = deque[Token]
Take = Callable[[], Token]
Push = Callable[[Token], None]


class Meter:
    """When the site's last firing ended: the next one's time starts there."""

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = time.perf_counter()


class Runner:
    """Fires one node instance: takes tokens, calls the node, gives tokens, keeps accounts."""

    def __init__(self, spec: NodeSpec, node: Node, context: Context, meter: Meter) -> None:
        self.spec, self.node, self.ctx, self.meter = spec, node, context, meter
        self.key = context.key
        self.role = spec.cls.role
        self.fired = 0
        self.busy_s = 0.0
        self.did = Count()
        self.takes: list[Take] = []
        self.pushes: dict[str, list[Push]] = {}
        self.waits_for: list[tuple[list[Queue], int]] = []  # what must be there before a firing
        self.on_record: Callable[[Runner, Record], None] = lambda runner, record: None
        self.fire: Callable[[], None] = self._fire
        self._call = node.fire
        self._outs = {n: p.rate for n, p in spec.cls.ports.items() if isinstance(p, Out)}
        self._last_clock = START

    def wire(self, takes: Mapping[str, Take], pushes: Mapping[str, list[Push]]) -> None:
        """Connect the ports; called again when a phase makes other edges active."""
        ports = self.spec.cls.ports
        self.takes = [
            takes.get(n, _nothing) for n, p in ports.items() if isinstance(p, In | StateIn)
        ]
        self.pushes = dict(pushes)
        self.ctx.wanted = frozenset(pushes)
        plain = [p for outs in pushes.values() for p in outs]
        self._take = self.takes[0] if len(self.takes) == 1 else _nothing
        self._push = plain[0] if len(plain) == 1 else _drop
        rates = [r for n, r in self._outs.items()]
        simple = len(self.takes) == 1 and len(plain) <= 1 and rates in ([], [1])
        self.fire = self._fire_simple if simple and self.role != "learner" else self._fire

    def ready(self) -> bool:
        """Whether every input has what a firing takes (only asked where tokens may have been dropped)."""
        return all(len(queue) >= rate for queues, rate in self.waits_for for queue in queues)

    def _fire_simple(self) -> None:
        """One input, at most one output of one token."""
        value, clock = self._take()
        ctx = self.ctx
        if clock is not self._last_clock:
            self._last_clock = clock
            ctx.clock = ctx.clock.merge(clock)
        out = self._call(value)
        if ctx.dirty:
            self._settle()
        self._push((out, ctx.clock))
        self.fired += 1
        now = _now()
        meter = self.meter
        self.busy_s += now - meter.last_s
        meter.last_s = now

    def _fire(self) -> None:
        """Any number of inputs and outputs."""
        ctx = self.ctx
        values = []
        for take in self.takes:
            value, clock = take()
            values.append(value)
            if clock is not self._last_clock:
                self._last_clock = clock
                ctx.clock = ctx.clock.merge(clock)
        out = self._call(*values)
        if self.role == "learner":
            ctx.clock = ctx.clock.add(self.key, train_iters=1)
        if ctx.dirty:
            self._settle()
        if self.pushes:
            self._give(out)
        self.fired += 1
        now = _now()
        self.busy_s += now - self.meter.last_s
        self.meter.last_s = now

    def _give(self, out: Any) -> None:
        clock = self.ctx.clock
        outs = self._outs
        if len(outs) > 1:
            if not isinstance(out, Mapping):
                raise TypeError(
                    f"fire gave {type(out).__name__}; a node with several outputs gives a mapping of them"
                )
        else:
            out = {next(iter(outs)): out}
        for port, pushes in self.pushes.items():
            if port not in out:
                raise KeyError(f"fire did not give the output '{port}'")
            value = out[port]
            if outs[port] == 1:
                for push in pushes:
                    push((value, clock))
                continue
            if len(value) != self.ctx.rates[port]:
                raise ValueError(
                    f"fire gave {len(value)} tokens of the output '{port}'; its rate is {self.ctx.rates[port]}"
                )
            for one in value:
                for push in pushes:
                    push((one, clock))

    def _settle(self) -> None:
        """What the firing counted and recorded."""
        ctx = self.ctx
        did = ctx.take_count()
        if did is not None:
            ctx.clock = ctx.clock.add(self.key, did.env_steps, did.episodes)
            old = self.did
            self.did = Count(old.env_steps + did.env_steps, old.episodes + did.episodes)
        records, ctx.records = ctx.records, []
        ctx.dirty = False
        for record in records:
            self.on_record(self, record)


class StateFeed:
    """The versions of one state output that somebody still has to see."""

    def __init__(self, runner: Runner, port: str, depth: int) -> None:
        self.runner, self.port, self.depth = runner, port, depth
        self._newest: State | None = None
        self._ends: deque[State] = deque(maxlen=max(depth, 1))

    def newest(self) -> State:
        """The version now: copied once, however many see it."""
        runner = self.runner
        if self._newest is None or self._newest.version != runner.fired:
            state = runner.node.state(self.port)
            self._newest = State(state.arrays, state.command, runner.fired, runner.ctx.clock)
        return self._newest

    def end_round(self) -> None:
        """A round ended: keep its last version for the rounds that will see it."""
        if self.depth:
            self._ends.append(self.newest())

    def view(self, lag: int) -> Take:
        """Takes the version at the end of round r - 1 - lag, in every firing of round r."""

        def take() -> Token:
            ends = self._ends
            state = ends[-1 - lag] if lag < len(ends) else ends[0] if ends else self.newest()
            return state, state.clock

        return take

    def view_newest(self) -> Take:
        """Takes the newest version."""

        def take() -> Token:
            state = self.newest()
            return state, state.clock

        return take


_now = time.perf_counter


def _nothing() -> Token:
    return None, START


def _drop(token: Token) -> None:
    pass


def take_one(queues: list[Queue]) -> Take:
    """One token; of several queues one each, concatenated in their order."""
    if len(queues) == 1:
        return queues[0].popleft
    return lambda: _joined([queue.popleft() for queue in queues])


def take_list(queues: list[Queue], rate: int) -> Take:
    """`rate` tokens as a list."""
    one = take_one(queues)

    def take() -> Token:
        tokens = [one() for _ in range(rate)]
        clock = START
        for _, other in tokens:
            clock = clock.merge(other)
        return [value for value, _ in tokens], clock

    return take


def _joined(tokens: list[Token]) -> Token:
    clock = START
    for _, other in tokens:
        clock = clock.merge(other)
    values = [value for value, _ in tokens]
    if all(isinstance(v, Batch) for v in values):
        return Batch.concat(values), clock
    return values, clock


def deal(queues: list[Queue]) -> Push:
    """Tokens to replicas in turn."""
    turns = cycle([queue.append for queue in queues])
    return lambda token: next(turns)(token)


class Dropping:
    """A bounded queue that loses its oldest token when it is full, and counts that."""

    def __init__(self, queue: Queue, capacity: int) -> None:
        self.queue, self.capacity, self.dropped = queue, capacity, 0

    def push(self, token: Token) -> None:
        if len(self.queue) >= self.capacity:
            self.queue.popleft()
            self.dropped += 1
        self.queue.append(token)
