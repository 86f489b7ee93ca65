"""The metrics of buffers: counters, and statistics of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from flowrl.core.batch import Array


@dataclass(slots=True)
class Counters:
    """Counts since the beginning. The elements of a buffer are rows, sequences or episodes."""

    pushes: int = 0  # tokens
    pushed: int = 0  # elements
    sampled: int = 0  # elements
    late: int = 0  # elements that no longer existed when their priorities arrived
    reports: int = 0  # reports of metrics

    def metrics_due(self, every_pushes: int) -> bool:
        """Whether a report of metrics is due, which is once in `every_pushes` pushes."""
        before, self.reports = self.reports, self.pushes // every_pushes
        return self.reports > before

    def metrics(self, elements: str, held: int) -> dict[str, float]:
        """Return the numbers of elements that are held, and were pushed, sampled and removed (for any reason)."""
        return {
            f"held_{elements}": held,
            f"pushed_{elements}": self.pushed,
            f"sampled_{elements}": self.sampled,
            f"removed_{elements}": self.pushed - held,
        }

    def state_dict(self) -> list[int]:
        """Return all counts, in the order of the fields."""
        return list(astuple(self))


def summary_metrics(arrays: Mapping[str, Array]) -> dict[str, float]:
    """Return mean, minimum and maximum of each array, as `<name>_mean` and so on. Empty arrays are omitted."""
    return {
        f"{name}_{statistic}": float(getattr(array, statistic)())
        for statistic in ("mean", "min", "max")
        for name, array in arrays.items()
        if len(array)
    }
