"""How a run ended, as data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["solved", "finished", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The keys of `flowrl run --json`."""

    graph: str
    run_dir: str
    placement: str
    status: Status
    deterministic: bool
    env_steps: int
    train_iters: int
    episodes: int
    eval_return: float | None
    best_return: float | None
    wall_s: float
    env_steps_per_s: float
    bottleneck: str
    digest: str
    seed: int = 0
    why: str = ""
    repeat: str = ""
    happened: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # of the machines that it ran on

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return dataclasses.asdict(self)


def finite(value: float | None) -> float | None:
    """JSON knows no nan."""
    return value if value is not None and math.isfinite(value) else None
