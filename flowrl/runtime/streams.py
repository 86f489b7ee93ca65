"""Streams within a site: queues, and how tokens are taken from them and given to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.state import EMPTY_CLOCK, Clock

Token = tuple[Any, Clock]  # a value, and the clock of its causal past
Queue = deque[Token]
Take = Callable[[], Token]
Push = Callable[[Token], None]


class AwaitedQueue(deque[Token]):
    """A queue whose tokens may have to be waited for."""

    def fill(self, tokens: int) -> None:
        """Have so many here: a firing that fails is tried again with the same ones."""


class DropOldestQueue(deque[Token]):
    """A bounded queue that loses its oldest token when it is full, and counts that."""

    def __init__(self, capacity: int) -> None:
        super().__init__(maxlen=capacity)
        self.dropped = 0

    def append(self, token: Token) -> None:
        """Put a token behind the others."""
        if len(self) == self.maxlen:
            self.dropped += 1
        super().append(token)


def nothing() -> Token:
    """What an input is given that nothing is connected to."""
    return None, EMPTY_CLOCK


def nowhere(token: Token) -> None:
    """Where an output goes that nobody takes."""


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
        return [value for value, _ in tokens], merged(clock for _, clock in tokens)

    return take


def has(queues: list[Queue], rate: int) -> bool:
    """Whether there is what a firing takes of an input."""
    return all(len(queue) >= rate for queue in queues)


def if_any(take: Take, queues: list[Queue], rate: int) -> Take:
    """Where a node fires on any input: nothing, if there are too few tokens."""
    return lambda: take() if has(queues, rate) else nothing()


def _joined(tokens: list[Token]) -> Token:
    values = [value for value, _ in tokens]
    clock = merged(clock for _, clock in tokens)
    if all(isinstance(value, Batch) for value in values):
        return Batch.concat(values), clock
    return values, clock


def merged(clocks: Iterable[Clock]) -> Clock:
    """The latest of all clocks, node by node."""
    clock = EMPTY_CLOCK
    for other in clocks:
        clock = clock.merge(other)
    return clock


def give_to(queues: list[Queue]) -> Push:
    """Tokens to a queue; to those of several replicas in turn."""
    if len(queues) == 1:
        return queues[0].append
    turns = cycle([queue.append for queue in queues])
    return lambda token: next(turns)(token)
