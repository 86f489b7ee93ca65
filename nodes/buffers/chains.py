"""Windows of rows, cut as the rows come; those of one episode go on from token to token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.runs import NONE, Runs
from flowrl.nodes.buffers.windows import windows, within
from flowrl.nodes.origin import COLLECTOR, ENV

Env = tuple[int, int]  # a collector and its env


@dataclass(slots=True)
class Tail:
    """The newest rows of an episode that goes on."""

    rows: Array  # their numbers, from where a sequence may still begin
    start: int  # where in them the next sequence begins
    newest: int  # and where the newest one did; less than nothing: further back


class Chains:
    """Cuts windows of `steps` rows, one every `period` rows, and knows the rows of each.

    Rows of known origin are followed from token to token: the windows are those that there would be
    had an episode's rows come all at once. The last window of an episode lies at its end, and is
    cut when the episode ends, or when it is seen that it does not go on.
    """

    def __init__(self, steps: int, period: int) -> None:
        self._steps, self._period = steps, period
        self._runs = Runs()
        self._tails: dict[Env, Tail] = {}

    def push(self, columns: Mapping[str, Array], first: int) -> tuple[Array, Array]:
        """First rows and lengths of the windows that end in new rows, the first with this number."""
        if not len(columns["last"]):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        self._runs.push(columns, first)
        if ENV in columns:
            return self._go_on_all(columns, first)
        firsts, lengths = windows(columns["last"], self._steps, self._period)
        return firsts + first, lengths

    def rows(self, firsts: Array, lengths: Array) -> tuple[Array, Array]:
        """The rows of windows (W, T) by their numbers, and which are real."""
        ends = self._runs.ends(self._runs.of(firsts))
        if (ends >= firsts + lengths - 1).all():
            return within(firsts, lengths, self._steps)
        numbers, _ = self._runs.follow(firsts, self._steps)
        offset = np.arange(self._steps)
        real = np.minimum(offset, lengths[:, None] - 1)
        return np.take_along_axis(numbers, real, 1), offset < lengths[:, None]

    def forget(self, oldest: int) -> None:
        """Rows before this one have left."""
        self._runs.forget(oldest)
        for tail in self._tails.values():
            self._drop(tail, int(np.count_nonzero(tail.rows < oldest)))

    def clear(self) -> None:
        """No row is held."""
        self._runs.clear()
        self._tails.clear()

    def _go_on_all(self, columns: Mapping[str, Array], first: int) -> tuple[Array, Array]:
        found: list[tuple[int, int]] = []
        runs, rows = self._runs, first + np.arange(len(columns["last"]))
        new = np.unique(runs.of(rows))
        begins, ends, follows = runs.begins(new), runs.ends(new), runs.previous(new) != NONE
        at = ends - first
        done = (columns["terminated"] | columns["truncated"])[at].tolist()
        envs = zip(columns[COLLECTOR][at].tolist(), columns[ENV][at].tolist(), strict=True)
        for k, env in enumerate(envs):
            if env in self._tails and not follows[k]:
                self._end(env, found)
            self._go_on(env, np.arange(begins[k], ends[k] + 1), found)
            if done[k]:
                self._end(env, found)
        firsts, lengths = np.array(found, np.int64).reshape(-1, 2).T
        return firsts, lengths

    def _go_on(self, env: Env, rows: Array, found: list[tuple[int, int]]) -> None:
        """An env's next rows, and the whole windows that they make."""
        tail = self._tails.setdefault(env, Tail(rows[:0], 0, NONE))
        tail.rows = np.append(tail.rows, rows)
        while tail.start + self._steps <= len(tail.rows):
            found.append((int(tail.rows[tail.start]), self._steps))
            tail.newest = tail.start
            tail.start += self._period
        spare = max(0, min(tail.start, len(tail.rows) - self._steps))
        self._drop(tail, spare)

    def _drop(self, tail: Tail, rows: int) -> None:
        tail.rows = tail.rows[rows:]
        tail.start, tail.newest = max(tail.start - rows, 0), tail.newest - rows

    def _end(self, env: Env, found: list[tuple[int, int]]) -> None:
        """The last window lies at the end, or is all that there is."""
        tail = self._tails.pop(env)
        latest = max(0, len(tail.rows) - self._steps)
        if len(tail.rows) and tail.newest != latest:
            found.append((int(tail.rows[latest]), len(tail.rows) - latest))

    def state_dict(self) -> dict[str, Any]:
        """The runs and the tails."""
        tails = [[*env, tail.rows, tail.start, tail.newest] for env, tail in self._tails.items()]
        return {"runs": self._runs.state_dict(), "tails": tails}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._runs.load_state_dict(state["runs"])
        self._tails = {
            (int(a), int(b)): Tail(np.array(rows), int(start), int(newest))
            for a, b, rows, start, newest in state["tails"]
        }
