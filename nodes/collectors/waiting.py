"""Steps that were taken and are in no token yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.nodes.collectors.acting import Taken
from flowrl.nodes.collectors.cut import Cut
from flowrl.nodes.observations import ObsColumns, flatten_columns


class Waiting:
    """Columns (B, T, …), of which env e's steps are those from `begin[e]` to `end[e]`."""

    def __init__(self, columns: Mapping[str, ObsColumns], envs: int) -> None:
        self._columns = columns
        self.arrays = {name: column.empty(envs, 0) for name, column in columns.items()}
        self.begin, self.end = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self._level = True  # whether the steps of all surely end at one place

    @property
    def held(self) -> Array:
        """Steps of each env."""
        return self.end - self.begin

    def make_room(self, steps: int) -> None:
        """Space for `steps` more of each env. Tokens may hold the old arrays.

        All envs end at one place then: those that are stepped together are written together.
        """
        held, old = self.held, self.arrays
        width, envs = int(held.max()), len(held)
        self.arrays = {n: _zeros(c.empty(envs, width + steps)) for n, c in self._columns.items()}
        level = int(self.end[0])
        for name, array in self.arrays.items():
            if width and (self.end == level).all():
                array[:, :width] = old[name][:, level - width : level]
                continue
            for env in np.flatnonzero(held):
                span = slice(self.begin[env], self.end[env])
                array[env, width - held[env] : width] = old[name][env, span]
        self.begin, self.end, self._level = width - held, np.full(envs, width), True

    def put(self, taken: Taken) -> int:
        """Take one step of some envs in; gives how many steps were lost with a failed episode."""
        ids = taken.ids
        if ids is None and not self._level:
            ids = np.arange(len(self.end))
        if ids is None:
            at = self.end[0]
            for name, array in self.arrays.items():
                array[:, at] = taken.columns[name]
            self.end += 1
        else:
            ends = self.end[ids]
            if ends.max() == self.arrays["reward"].shape[1]:
                self.make_room(1 + int(self.held.max()))
                ends = self.end[ids]
            for name, array in self.arrays.items():
                array[ids, ends] = taken.columns[name]
            self.end[ids] += 1
            self._level = False
        return sum(map(self._drop, taken.failed)) if len(taken.failed) else 0

    def _drop(self, env: int) -> int:
        """Forget an env's steps since its last episode ended; its others end where they would."""
        begin, end = self.begin[env], self.end[env]
        done = self.arrays["terminated"][env, begin:end] | self.arrays["truncated"][env, begin:end]
        kept = int(np.flatnonzero(done)[-1]) + 1 if done.any() else 0
        lost = int(end - begin) - kept
        for array in self.arrays.values():
            array[env, begin + lost : end] = array[env, begin : begin + kept].copy()
        self.begin[env] += lost
        return lost

    def take(self, cut: Cut, pieces: int) -> Batch:
        """The earliest pieces as rows, sorted by env."""
        if (self.end != self.arrays["reward"].shape[1]).any():
            self.make_room(0)
        env, first = cut.choose(self.begin, self.arrays["reward"].shape[1], pieces)
        steps = self.arrays["reward"].shape[1] - cut.nstep + 1
        whole = not self.begin.any() and len(env) == len(self.begin) * steps
        rows = cut.rows(self.arrays, env, first, whole and not cut.unrolls)
        self.begin = self.begin + np.bincount(env, minlength=len(self.begin)) * cut.stride
        return Batch(flatten_columns(rows))

    def state_dict(self) -> dict[str, Any]:
        """The steps."""
        self.make_room(0)
        return {"steps": self.arrays, "begin": self.begin}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.arrays = {name: np.array(state["steps"][name]) for name in self._columns}
        self.begin = np.array(state["begin"], np.int64)
        self.end, self._level = np.full(len(self.begin), self.arrays["reward"].shape[1]), True


def _zeros(array: Array) -> Array:
    """What was never written must not surprise whoever reckons with whole columns."""
    return np.zeros(array.shape, array.dtype)
