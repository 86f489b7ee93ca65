"""The rows of a ring as a buffer draws them: with the sum of the `nstep` rewards of their window.

The ring stores rows with one reward each. When the window of a row is complete, its sum and its end are noted in the
ring's metadata, and the row can be drawn from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.core.facts import Surroundings
from flowrl.nodes.buffers.episodes.segments import recovered_columns
from flowrl.nodes.buffers.storage.plan import input_schema
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.nstep import (
    READ_COLUMNS,
    NstepRule,
    columns_of_end,
    nstep_rule,
    row_order,
    without_links,
)
from flowrl.nodes.origin import ENV_COLUMN, LINK_COLUMNS
from flowrl.nodes.returns import NstepWindows, nstep_returns

# The sum of the window's rewards, the discount of the value at its end, and by how many rows its last row is later.
WINDOW_METADATA = {
    "window_return": "float32",
    "window_discount": "float32",
    "window_offset": "int32",
}
WINDOW_BYTES = sum(np.dtype(dtype).itemsize for dtype in WINDOW_METADATA.values())
NUMBER = "number"


def window_metadata(rule: NstepRule | None) -> Mapping[str, str]:
    """Return the metadata that a ring needs for the windows of its rows."""
    return {} if rule is None else WINDOW_METADATA


@dataclass(frozen=True, slots=True)
class WindowFacts:
    """What the windows of a buffer mean for its description."""

    rule: NstepRule | None
    drawn: Schema  # the columns of rows that are drawn
    most_waiting: int  # the rows that may wait for the end of their window
    row_bytes: int  # the bytes of the metadata of each row

    @classmethod
    def of(cls, config: Any, surroundings: Surroundings) -> WindowFacts:
        schema = input_schema(surroundings)
        rule = nstep_rule(config.policy, schema)
        if rule is None:
            return cls(None, schema, 0, 0)
        return cls(rule, rule.summed_schema(schema), rule.most_waiting(schema), WINDOW_BYTES)


class RowWindows:
    """Finds the windows of rows while they arrive, and reads rows with summed rewards.

    The window of a row is complete with `nstep` rows, at the end of its episode, and when a later row of its env
    shows that the next row will not come. Rows without origin columns have windows that end with their token.
    """

    def __init__(self, ring: Ring, rule: NstepRule | None) -> None:
        """Without a rule, rows are read as they are, and none waits. The ring may hold rows of an earlier process."""
        self.ring, self.rule = ring, rule
        self._waiting: dict[str, Array] = {}  # rows whose window is incomplete
        self.waiting = np.empty(0, np.int64)  # their numbers, in ascending order
        # The columns that a drawn row has from the end of its window, and those of its own; known after the first push.
        self._names_at_end: list[str] = []
        self._own_names: list[str] = []
        # How many rows that can be drawn come before each that waits.
        self._drawable_before = self.waiting
        if rule is not None and ring.row_count:
            self.push(*recovered_columns(ring, READ_COLUMNS))

    def push(self, columns: Mapping[str, Array], first: int) -> None:
        """Add rows that the ring has stored, the first of which has the number `first`."""
        if self.rule is None or not (rows := len(columns["last"])):
            return
        links = LINK_COLUMNS if ENV_COLUMN in columns else ()
        new = {name: columns[name] for name in (*READ_COLUMNS, *links)}
        known = self._with_waiting({**new, NUMBER: first + np.arange(rows)})
        order = row_order(known)
        known = {name: array[order.rows] for name, array in known.items()}
        windows = nstep_returns(known["reward"], order.cuts, self.rule.gamma, self.rule.nstep)
        waits = (windows.steps < self.rule.nstep) & order.newest[windows.last]
        self._waiting = {name: array[waits] for name, array in known.items()}
        self._set_waiting()
        self._note(known, windows, ~waits)

    def _set_waiting(self) -> None:
        self.waiting = np.sort(self._waiting.get(NUMBER, self.waiting[:0]))
        skipped = np.sort(self.ring.indices_of(self.waiting))
        self._drawable_before = skipped - np.arange(len(skipped))

    def _with_waiting(self, new: dict[str, Array]) -> dict[str, Array]:
        """Join the rows that wait and are still held with new ones that are held."""
        held = {}
        for name, array in new.items():
            waiting = self._waiting.get(name, array[:0])
            held[name] = np.concatenate([waiting, array])
        if held[NUMBER].min() < self.ring.oldest:
            kept = held[NUMBER] >= self.ring.oldest
            held = {name: array[kept] for name, array in held.items()}
        return held

    def _note(self, rows: Mapping[str, Array], windows: NstepWindows, complete: Array) -> None:
        """Note the windows of some rows in the metadata of the ring."""
        assert self.rule is not None
        steps, last = windows.steps[complete], windows.last[complete]
        numbers, metadata = rows[NUMBER][complete], self.ring.metadata
        places = self.ring.places_of(numbers)
        metadata["window_return"][places] = windows.returns[complete]
        metadata["window_discount"][places] = self.rule.discount(rows["terminated"][last], steps)
        metadata["window_offset"][places] = rows[NUMBER][last] - numbers

    def metrics(self) -> dict[str, float]:
        """Return how many rows wait, if some may."""
        return {} if self.rule is None else {"waiting_rows": len(self.waiting)}

    @property
    def count(self) -> int:
        """The number of rows that can be drawn."""
        return self.ring.row_count - len(self.waiting)

    def places_of_drawable(self, index: Array) -> Array:
        """Map indices from 0 to distinct places of rows that can be drawn."""
        if len(self.waiting):
            index = index + self._drawable_before.searchsorted(index, side="right")
        return self.ring.places_from_oldest(index)

    @property
    def names(self) -> list[str]:
        """The columns of rows that are drawn."""
        names = self.ring.columns
        return list(names) if self.rule is None else without_links(names)

    def take(self, places: Array) -> dict[str, Array]:
        """Return the rows at these places, which can be drawn."""
        if self.rule is None:
            return self.ring.take(places)
        if not self._names_at_end:
            self._names_at_end = columns_of_end(self.names)
            changed = {"reward", "discount", *self._names_at_end}
            self._own_names = [name for name in self.names if name not in changed]
        columns = self.ring.take(places, self._own_names) | self.summed(places)
        columns |= self.ring.take(self.ends(places), self._names_at_end)
        return {name: columns[name] for name in self.ring.columns if name in columns}

    def summed(self, places: Array) -> dict[str, Array]:
        """Return the columns of these rows that are sums over their window."""
        metadata = self.ring.metadata
        names = {"reward": "window_return", "discount": "window_discount"}
        return {name: metadata[noted].take(places, 0, mode="clip") for name, noted in names.items()}

    def ends(self, places: Array) -> Array:
        """Return the places of the last rows of the windows of these rows."""
        return self._wrapped(
            places + self.ring.metadata["window_offset"].take(places, 0, mode="clip")
        )

    def _wrapped(self, places: Array) -> Array:
        """Continue at place 0 after the last place."""
        wrapped: Array = places - self.ring.size * (places >= self.ring.size)
        return wrapped

    def clear(self) -> None:
        """Forget all rows. Later rows continue none of them."""
        self._waiting = {}
        self._set_waiting()

    def state_dict(self) -> dict[str, Any]:
        return dict(self._waiting)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._waiting = {name: np.array(array) for name, array in state.items()}
        self._set_waiting()
