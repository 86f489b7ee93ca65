"""Records: what a node emits in a firing beside its tokens. Each reaches the run with the position of the firing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.core.histogram import Histogram
from flowrl.core.state import State

CHECKPOINTS = "checkpoints"  # the folder of a run's checkpoints

# columns that every row of metrics has
SOURCE_COLUMNS = ("node", "role", "firing", "env_steps", "episodes", "train_iters")


@dataclass(frozen=True, slots=True)
class MetricsRecord:
    """Metrics of one firing."""

    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HistogramsRecord:
    """How arrays of one firing are spread, by name."""

    histograms: Mapping[str, Histogram]


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """States to be written as a checkpoint. Then the checkpoint that it replaces is removed, if there is one.

    A node's own state has an empty name; those of several inputs have the names of these.
    """

    name: str
    states: Mapping[str, State]
    info: Mapping[str, Any]
    replaces: str = ""
    folder: str = CHECKPOINTS  # within that of the run


@dataclass(frozen=True, slots=True)
class LinesRecord:
    """Lines to be appended to a file of the run, such as `league/payoff.jsonl`."""

    file: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """The run has reached its goal: cut right after this firing."""

    reason: str


@dataclass(frozen=True, slots=True)
class IrregularityRecord:
    """A kind of event that makes a run differ from others of the same graph and seed, and how often it happened."""

    what: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class DeferredEffect:
    """An effect outside the run. It is performed once its firing is known to lie before the cut."""

    do: Callable[[], None]


@dataclass(frozen=True, slots=True)
class CutReport:
    """Emits what a node has not reported yet, if the run is cut before the node's next such record. None: nothing."""

    make: Callable[[], None] | None


# What the folder of a run tells. A str is a line of the node's log.
WrittenRecord = (
    MetricsRecord
    | HistogramsRecord
    | CheckpointRecord
    | LinesRecord
    | VerdictRecord
    | IrregularityRecord
    | str
)
Record = WrittenRecord | DeferredEffect | CutReport
