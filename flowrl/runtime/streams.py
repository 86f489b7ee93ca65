"""Queues of tokens, and the functions by which instances take and push tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.errors import NodeError
from flowrl.core.row_order import split_rows
from flowrl.core.state import EMPTY_CLOCK, Clock

Token = tuple[Any, Clock]  # a value, and the clock of its causal past
Queue = deque[Token]
Take = Callable[[], Token]
Push = Callable[[Token], None]


class AwaitedQueue(deque[Token]):
    """A queue from which taking a token may wait."""

    def fill(self, tokens: int) -> None:
        """Wait until the deque itself holds this many tokens, so that a failed firing can be retried with them."""

    def hold_arrived(self) -> None:
        """Let the deque itself hold all tokens that have arrived."""


class DropOldestQueue(deque[Token]):
    """A bounded queue that drops its oldest token when it is full, and counts the drops."""

    def __init__(self, capacity: int) -> None:
        super().__init__(maxlen=capacity)
        self.dropped = 0

    def append(self, token: Token) -> None:
        if len(self) == self.maxlen:
            self.dropped += 1
        super().append(token)


def take_nothing() -> Token:
    """Take from an unconnected input."""
    return None, EMPTY_CLOCK


def discard(token: Token) -> None:
    """Push to an unconnected output."""


def take_one(queues: list[Queue]) -> Take:
    """Return a function that takes one token of each queue, and concatenates them in the order of the queues."""
    if len(queues) == 1:
        return queues[0].popleft
    return lambda: _concatenated([queue.popleft() for queue in queues])


def take_list(queues: list[Queue], rate: int) -> Take:
    """Return a function that takes `rate` tokens as a list."""
    one = take_one(queues)

    def take() -> Token:
        tokens = [one() for _ in range(rate)]
        return [value for value, _ in tokens], _merged(clock for _, clock in tokens)

    return take


def take_if_ready(take: Take, queues: list[Queue], rate: int) -> Take:
    """Return a function that takes nothing if there are too few tokens; for nodes that fire on any input."""
    return lambda: take() if has_tokens(queues, rate) else take_nothing()


def has_tokens(queues: list[Queue], rate: int) -> bool:
    """Return whether each queue holds the tokens of one firing."""
    return all(len(queue) >= rate for queue in queues)


class PushInTurn:
    """Pushes to several queues in turn."""

    def __init__(self, queues: list[Queue]) -> None:
        self._pushes = [queue.append for queue in queues]
        self.turn = 0  # the queue that gets the next token

    def __call__(self, token: Token) -> None:
        self._pushes[self.turn](token)
        self.turn = (self.turn + 1) % len(self._pushes)


class PushParts:
    """Pushes a part of the rows of each token to each replica of a group."""

    def __init__(self, consumer: str, pushes: list[Push], in_order: bool) -> None:
        """`in_order`: whether the rows of a part must be in the order of time."""
        self._consumer, self._pushes, self._in_order = consumer, pushes, in_order

    def __call__(self, token: Token) -> None:
        rows, clock = token
        try:
            parts = split_rows(rows, len(self._pushes), self._in_order)
        except ValueError as error:
            raise NodeError(
                self._consumer, "splitting a token among its replicas", error
            ) from error
        for push, part in zip(self._pushes, parts, strict=True):
            push((part, clock))


def _concatenated(tokens: list[Token]) -> Token:
    values = [value for value, _ in tokens]
    clock = _merged(clock for _, clock in tokens)
    if all(isinstance(value, Batch) for value in values):
        return Batch.concat(values), clock
    return values, clock


def _merged(clocks: Iterable[Clock]) -> Clock:
    clock = EMPTY_CLOCK
    for other in clocks:
        clock = clock.merge(other)
    return clock
