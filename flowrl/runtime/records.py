"""Who tells a record, and when: what sinks know of a node's firing."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.core.state import Count


@dataclass(frozen=True, slots=True)
class RecordSource:
    """A node in one of its firings."""

    key: str
    role: str
    fired: int  # firings before this one
    total: Count  # its causal past, and this firing
