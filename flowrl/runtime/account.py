"""Where an instance's time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Account:
    """What an instance has done so far."""

    key: str
    fired: int
    busy_s: float  # firing, waits left out
    waiting_s: Mapping[str, float] = field(default_factory=dict)  # for inputs, by edge
    blocked_s: Mapping[str, float] = field(default_factory=dict)  # on outputs, by edge
    site: str = "main"
