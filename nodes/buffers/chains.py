"""Sequences that go on from token to token: cut out of each env's rows as they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.batch import Array
from flowrl.nodes.buffers.runs import NONE, Runs
from flowrl.nodes.origin import COLLECTOR, ENV

Env = tuple[int, int]  # a collector and its env


@dataclass(slots=True)
class Tail:
    """The newest rows of an episode that goes on."""

    rows: Array  # their numbers, from where a sequence may still begin
    start: int  # where in them the next sequence begins
    newest: int  # and where the newest one did; less than nothing: further back


class Chains:
    """Cuts the windows that `windows` would, had an episode's rows come all at once.

    The last window of an episode lies at its end, and is cut when the episode ends, or when it is
    seen that it does not go on.
    """

    def __init__(self, steps: int, period: int) -> None:
        self._steps, self._period = steps, period
        self._tails: dict[Env, Tail] = {}

    def cut(self, columns: Mapping[str, Array], first: int, runs: Runs) -> tuple[Array, Array]:
        """First rows and lengths of the sequences that end in new rows, which are runs already."""
        found: list[tuple[int, int]] = []
        new = np.unique(runs.of(first + np.arange(len(columns["last"]))))
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

    def forget(self, oldest: int) -> None:
        """Rows before this one have left."""
        for tail in self._tails.values():
            self._drop(tail, int(np.count_nonzero(tail.rows < oldest)))

    def clear(self) -> None:
        """No row is held."""
        self._tails.clear()

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

    def state_dict(self) -> list[Any]:
        """The tails."""
        return [[*env, tail.rows, tail.start, tail.newest] for env, tail in self._tails.items()]

    def load_state_dict(self, state: list[Any]) -> None:
        """These tails."""
        self._tails = {
            (int(a), int(b)): Tail(np.array(rows), int(start), int(newest))
            for a, b, rows, start, newest in state
        }
