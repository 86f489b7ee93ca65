"""The versions of a state: which one a firing sees."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flowrl.core.errors import NodeError
from flowrl.core.state import EMPTY_CLOCK, State
from flowrl.runtime.instance import Instance
from flowrl.runtime.streams import Push, Take, Token


class StateVersions:
    """The versions of one state output that somebody still has to see. Only those are copied.

    `depth` is how many ends of rounds are kept: one more than the largest lag, or 0.
    """

    def __init__(self, instance: Instance, port: str, depth: int = 0) -> None:
        self.instance, self.port = instance, port
        self.readers: list[Push] = []  # on other sites: told of every end of a round
        self.paced: list[tuple[int, Callable[[], None]]] = []  # on other sites: each n-th version
        self._newest: State | None = None
        self._ends: deque[State] = deque(maxlen=depth)
        if depth:  # before round 0, every round ended with version 0
            self._ends.extend([self.newest()] * depth)

    def newest(self) -> State:
        """The version now: copied once, however many see it."""
        instance = self.instance
        if self._newest is None or self._newest.version != instance.fired:
            self._newest = self._copied()
        return self._newest

    def _copied(self) -> State:
        instance = self.instance
        try:
            state = instance.node.state(self.port)
            for array in state.arrays.values():
                array.flags.writeable = False
        except Exception as error:
            raise NodeError(instance.key, f"giving its state '{self.port}'", error) from error
        return State(state.arrays, state.command, instance.fired, instance.ctx.clock)

    def end_round(self) -> None:
        """A round ended: keep its last version for the rounds that will see it."""
        if self._ends:
            self._ends.append(self.newest())
        for push in self.readers:
            push((self.newest(), EMPTY_CLOCK))

    def view(self, lag: int) -> Take:
        """Takes the version at the end of round r - 1 - lag, in every firing of round r."""
        ends = self._ends

        def take() -> Token:
            state = ends[-1 - lag]
            return state, state.clock

        return take

    def view_newest(self) -> Take:
        """Takes the newest version."""

        def take() -> Token:
            state = self.newest()
            return state, state.clock

        return take
