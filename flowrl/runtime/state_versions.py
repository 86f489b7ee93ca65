"""Keeps the versions of a node's state that firings may still read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from flowrl.core.errors import NodeError
from flowrl.core.saved_state import SavedState, UnsavableStateError
from flowrl.core.state import EMPTY_CLOCK, State
from flowrl.runtime.finite_numbers import check_no_nan
from flowrl.runtime.instance import Instance
from flowrl.runtime.lagged_versions import LaggedVersions
from flowrl.runtime.streams import Push, Take, Token


class StateVersions:
    """The versions of one state output that consumers can still read. Versions that no consumer reads are not copied.

    A state has version n after the n-th firing of its node.
    """

    def __init__(self, instance: Instance, port: str, depth: int = 0) -> None:
        """`depth` is the number of round ends to keep: one more than the largest lag, or 0."""
        self.instance, self.port = instance, port
        # Readers on other sites, as made by an `EdgeFactory`.
        self.round_end_readers: list[Push] = []
        # Each with n, for every n-th version: those of nodes that it paces, or with a lag in versions.
        self.paced_readers: list[tuple[int, Callable[[], None]]] = []
        self._newest: State | None = None
        self._whole: State | None = None  # the newest version that was copied with its whole state
        self._lagged: LaggedVersions | None = None
        self._round_ends: deque[State] = deque(maxlen=depth)
        if depth:  # before round 0, every round ended with version 0
            self._round_ends.extend([self.newest()] * depth)

    def newest(self) -> State:
        """Return the newest version, which is copied once for all its readers."""
        instance = self.instance
        if self._newest is None or self._newest.version != instance.fired:
            self._newest = self._copy()
        return self._newest

    def newest_whole(self) -> State:
        """Return the newest version with the node's whole state, if the node is a learner that can be saved."""
        newest = self.newest()
        if not self.instance.is_learner:
            return newest
        if self._whole is None or self._whole.version != newest.version:
            self._whole = replace(newest, whole=self._save())
        return self._whole

    def _save(self) -> SavedState | None:
        instance = self.instance
        try:
            state = instance.node.state_dict()
            if not state:
                return None
            saved = SavedState.of(state)
            if self._whole is None:
                saved.parts()  # the first one shows that it can be written
            return saved
        except UnsavableStateError:
            return None  # then its checkpoints hold what acting needs, and a snapshot is refused
        except Exception as error:
            raise NodeError(instance.key, "giving its `state_dict`", error) from error

    def _copy(self) -> State:
        instance = self.instance
        try:
            state = instance.node.state(self.port)
            for array in state.arrays.values():
                array.flags.writeable = False
            if instance.is_learner:
                last = None if self._newest is None else self._newest.version
                check_no_nan(state.arrays, instance.fired, last)
        except Exception as error:
            raise NodeError(instance.key, f"giving its state '{self.port}'", error) from error
        return State(state.arrays, state.command, instance.fired, instance.ctx.clock)

    @property
    def of_later_rounds(self) -> list[State]:
        """The versions that later rounds may still read: those of round ends, or of a paced node's last firings."""
        return list(self._round_ends) if self._lagged is None else self._lagged.of_later_rounds

    def continue_with(self, states: list[State]) -> None:
        """Continue a saved run, in which these were the versions for later rounds."""
        if self._lagged is None:
            self._round_ends.extend(states)
        else:
            self._lagged.continue_with(states)
        self._newest = self._whole = None

    def keep_firings(self, lagged: LaggedVersions) -> None:
        """Keep the version of each firing, for consumers whose lag counts firings."""
        self._lagged = lagged
        lagged.add(self.newest())
        self.paced_readers.append((1, lambda: lagged.add(self.newest())))

    def end_round(self) -> None:
        """Keep the last version of the round for later rounds, and send it to readers on other sites."""
        if self._round_ends:
            self._round_ends.append(self.newest())
        for push in self.round_end_readers:
            push((self.newest(), EMPTY_CLOCK))

    def round_end_view(self, lag: int) -> Take:
        """Return a function that takes, in every firing of round r, the version with which round r - 1 - lag ended."""
        ends = self._round_ends

        def take() -> Token:
            state = ends[-1 - lag]
            return state, state.clock

        return take

    def lagged_view(self, lag: int) -> Take:
        """Return a function that takes the version `lag` firings before the last one of earlier rounds."""
        assert self._lagged is not None
        return partial(self._lagged.take, lag)

    def newest_view(self, whole: bool = False) -> Take:
        """Return a function that takes the newest version, with the node's whole state if this is asked for."""

        def take() -> Token:
            state = self.newest_whole() if whole else self.newest()
            return state, state.clock

        return take
