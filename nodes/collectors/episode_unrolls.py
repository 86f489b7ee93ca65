"""Unrolls from whole episodes, which differ in length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.collectors.row_slicer import RowSlicer
from flowrl.nodes.observations import ObsColumns


class EpisodeUnrolls:
    """Cuts unrolls from episodes that follow each other, so that one unroll may hold the end of one and the next one.

    A recurrent network begins anew there, as it did when it acted. The last steps, which fill no unroll, wait for the
    next episodes.
    """

    def __init__(self, slicer: RowSlicer, columns: Mapping[str, ObsColumns]) -> None:
        """`columns` are those of a step."""
        self._slicer = slicer
        self._waiting = {name: column.empty(0) for name, column in columns.items()}

    def cut(self, steps: Mapping[str, Array]) -> dict[str, Array]:
        """Return the rows of all whole unrolls, after the steps (N, …) of further episodes."""
        joined = {n: np.concatenate([array, steps[n]]) for n, array in self._waiting.items()}
        count = len(joined["reward"])
        unrolls = self._slicer.slice_count(np.array([count]))
        if not unrolls:
            raise ValueError(
                f"the matches of a token have {count} steps of the player, and an unroll has {self._slicer.length}; "
                "give the collector more `n_episode`, or the policy fewer `unroll_steps`"
            )
        of_one = {name: array[None] for name, array in joined.items()}
        env, first = self._slicer.choose(np.zeros(1, np.int64), count, unrolls)
        rows = self._slicer.rows(of_one, env, first, all_steps=False)
        taken = unrolls * self._slicer.stride
        self._waiting = {name: array[taken:].copy() for name, array in joined.items()}
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {"waiting": dict(self._waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._waiting = {name: np.array(state["waiting"][name]) for name in self._waiting}
