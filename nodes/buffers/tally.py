"""What went through a buffer, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from flowrl.core.batch import Array


@dataclass(slots=True)
class Tally:
    """Counts since the beginning; of rows, or whatever else a buffer draws."""

    pushes: int = 0  # tokens
    pushed: int = 0
    sampled: int = 0
    late: int = 0  # whose priorities came when they had left
    told: int = 0  # how often metrics were due

    def due(self, every_pushes: int) -> bool:
        """Whether metrics are due: once in so many tokens."""
        before, self.told = self.told, self.pushes // every_pushes
        return self.told > before

    def metrics(self, what: str, held: int) -> dict[str, float]:
        """Held, pushed, sampled, and removed in whatever way."""
        return {
            f"held_{what}": held,
            f"pushed_{what}": self.pushed,
            f"sampled_{what}": self.sampled,
            f"removed_{what}": self.pushed - held,
        }

    def state(self) -> list[int]:
        """All counts."""
        return list(astuple(self))


def spread(drawn: Mapping[str, Array]) -> dict[str, float]:
    """Mean, least and largest of what is known of the rows that were drawn last."""
    return {
        f"{name}_{word}": float(of(array))
        for word, of in {"mean": _mean, "min": _min, "max": _max}.items()
        for name, array in drawn.items()
        if len(array)
    }


def _mean(array: Array) -> float:
    return float(array.mean())


def _min(array: Array) -> float:
    return float(array.min())


def _max(array: Array) -> float:
    return float(array.max())
