"""Edges with `dtype: float16`, which round the float32 numbers of tokens and states to half precision.

The rounding is a part of the graph, so it takes place in every placement. The arrays stay float32. Between machines
they are sent as float16, which loses nothing more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.errors import NodeError
from flowrl.core.state import State
from flowrl.graph.model import Edge
from flowrl.runtime.streams import Push, Take, Token

OVERFLOW = 65520.0  # the smallest number that would be rounded to infinity


class EdgeRounding:
    """Rounds what one edge carries. A state that several consumers read is rounded once."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._last: State | None = None
        self._last_rounded: State | None = None

    def rounded_push(self, instance: str, push: Push) -> Push:
        """Wrap the push of an instance to the edge."""

        def round_and_push(token: Token) -> None:
            push((self._rounded(instance, token[0]), token[1]))

        return round_and_push

    def rounded_take(self, take: Take) -> Take:
        """Wrap the take of a state."""

        def take_and_round() -> Token:
            value, clock = take()
            return self.rounded_state(value), clock

        return take_and_round

    def rounded_state_push(self, push: Push) -> Push:
        """Wrap the push of versions. None, which states that there is no new version, is passed on."""

        def round_and_push(token: Token) -> None:
            state, clock = token
            push((state and self.rounded_state(state), clock))

        return round_and_push

    def rounded_state(self, state: State) -> State:
        if state is not self._last:
            self._last_rounded = self._rounded(self._edge.source.node, state)
            self._last = state
        assert self._last_rounded is not None
        return self._last_rounded

    def _rounded(self, instance: str, value: Any) -> Any:
        try:
            return rounded(value)
        except ValueError as error:
            raise NodeError(instance, f"giving what {self._edge} carries", error) from error


def rounded(value: Any, name: str = "") -> Any:
    """Return a value with its float32 arrays rounded; raise ValueError for a number that float16 cannot hold.

    `name` names the value in that error. Of a state, the command and the whole state stay as they are.
    """
    if isinstance(value, np.ndarray):
        return _rounded_array(value, name)
    if isinstance(value, Batch):
        return Batch({n: _rounded_array(a, n) for n, a in value.columns.items()})
    if isinstance(value, State):
        return replace(value, arrays={n: _rounded_array(a, n) for n, a in value.arrays.items()})
    if type(value) in (list, tuple):
        return type(value)(rounded(item, name) for item in value)
    if type(value) is dict:
        return {key: rounded(item, str(key)) for key, item in value.items()}
    return value


def _rounded_array(array: Array, name: str) -> Array:
    if array.dtype != np.float32:
        return array
    try:
        with np.errstate(over="raise"):
            result = array.astype(np.float16).astype(np.float32)
    except FloatingPointError:
        too_large = array[np.isfinite(array) & (np.abs(array) >= OVERFLOW)]
        raise ValueError(
            f"'{name}' holds {too_large[0]:g}, and float16 holds at most 65504; remove `dtype: float16` from the edge, "
            "or give smaller numbers"
        ) from None
    result.flags.writeable = False
    return result
