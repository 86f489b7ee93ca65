"""What buffers report: counters, and statistics of what was drawn last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from flowrl.core.batch import Array


@dataclass(slots=True)
class Counters:
    """Counts since the beginning. Elements are rows, sequences or episodes, whichever a buffer draws."""

    pushes: int = 0  # tokens
    pushed: int = 0  # elements
    sampled: int = 0  # elements
    late: int = 0  # elements that were gone when their priorities arrived
    reports: int = 0  # of metrics

    def metrics_due(self, every_pushes: int) -> bool:
        """Whether metrics are due: once in so many pushes."""
        before, self.reports = self.reports, self.pushes // every_pushes
        return self.reports > before

    def metrics(self, elements: str, held: int) -> dict[str, float]:
        """The elements that are held, were pushed, sampled, and removed for any reason."""
        return {
            f"held_{elements}": held,
            f"pushed_{elements}": self.pushed,
            f"sampled_{elements}": self.sampled,
            f"removed_{elements}": self.pushed - held,
        }

    def state_dict(self) -> list[int]:
        """All counts, in the order of the fields."""
        return list(astuple(self))


def summary_metrics(arrays: Mapping[str, Array]) -> dict[str, float]:
    """Mean, minimum and maximum of each array, as `<name>_mean` and so on. Empty arrays are left out."""
    return {
        f"{name}_{statistic}": float(getattr(array, statistic)())
        for statistic in ("mean", "min", "max")
        for name, array in arrays.items()
        if len(array)
    }
