"""Where the time of a run went, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.runtime.executor import InstanceTimes


def timings_of(
    instance_times: Sequence[InstanceTimes], idle_s: Mapping[str, float], wall_s: float
) -> dict[str, Any]:
    """What timings.json says: of each instance, and of each site."""
    return {
        "wall_s": round(wall_s, 6),
        "busy_s": {a.key: round(a.busy_s, 6) for a in instance_times},
        "waiting_s": {a.key: _rounded(a.waiting_s) for a in instance_times if a.waiting_s},
        "blocked_s": {a.key: _rounded(a.blocked_s) for a in instance_times if a.blocked_s},
        "idle_s": _rounded(idle_s),
        "site": {a.key: a.site for a in instance_times},
    }


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {key: round(s, 6) for key, s in seconds.items()}
