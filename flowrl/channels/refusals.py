"""Counts of what was refused, for the summary of a run."""

from __future__ import annotations

from collections import Counter

MAX_REASONS = 50  # that are counted on their own: a reason may contain a name that a stranger chose
MAX_LINES = 20
OTHERS = "other reasons"


class RefusalCounts:
    """How often something was refused, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str, times: int = 1) -> None:
        is_counted = reason in self._counts or len(self._counts) < MAX_REASONS
        self._counts[reason if is_counted else OTHERS] += times

    def as_dict(self) -> dict[str, int]:
        return dict(self._counts)

    def lines(self, where: str) -> list[str]:
        """Return a line for each reason, the most frequent first."""
        lines = [f"refused {where}: {why} ({n} times)" for why, n in self._counts.most_common()]
        if len(lines) > MAX_LINES:
            more = len(lines) - MAX_LINES
            lines[MAX_LINES:] = [f"refused {where}: {more} more reasons"]
        return lines
