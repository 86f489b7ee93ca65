"""Means of metrics over the train iterations from one report to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.nodes.groups import Group


class MeanMetrics:
    """The sum and the number of each metric's values since the last report.

    In a group, each learner adds the values of its rows, and a mean is that over the rows of all of them.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        # By name: values that are not in the sums yet, each with this learner's share of the rows.
        self._values: dict[str, list[tuple[Any, float]]] = {}
        self._sums: dict[str, list[float]] = {}

    @property
    def names(self) -> list[str]:
        return sorted({*self._sums, *self._values})

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add values: floats, or tensors of one number, which are converted later, because that waits for them."""
        for name, value in metrics.items():
            self._values.setdefault(name, []).append((value, self._group.share))

    def take_means(self) -> dict[str, float]:
        """Return the means since the last report, and begin anew."""
        sums, names = self._all_sums(), self.names
        totals = self._group.sum_numbers([sums[name][0] for name in names])
        means = {name: total / sums[name][1] for name, total in zip(names, totals, strict=True)}
        self._sums = {}
        return {name: means[name] for name in sums}

    def _all_sums(self) -> dict[str, list[float]]:
        for name, values in self._values.items():
            found = self._sums.setdefault(name, [0.0, 0])
            # one by one: the sum does not depend on when it is asked for
            for value, share in values:
                found[0] += float(value) * share
                found[1] += 1
        self._values = {}
        return self._sums

    def state_dict(self) -> dict[str, list[float]]:
        return {name: list(found) for name, found in self._all_sums().items()}

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        self._values = {}
        self._sums = {name: list(found) for name, found in state.items()}
