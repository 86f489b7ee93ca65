"""What executes a checked graph, as a run sees it: `SerialExecutor` on one site, `Coordinator` on several."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flowrl.core.state import Count, State
from flowrl.runtime.status import AgedStatus
from flowrl.runtime.token_hashing import Note

Reason = Literal["verdict", "steps", "train_iters", "rounds", "time", "interrupt", "done"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Why and where a run ended: the rounds that were completed, and the counts at that position."""

    reason: Reason
    why: str  # the reason in words
    rounds: int  # without those of the warm-up
    counts: Count


@dataclass(frozen=True, slots=True)
class InstanceTimes:
    """How often an instance has fired, and where its time went."""

    key: str
    fired: int
    busy_s: float  # in firings, without the waits
    waiting_s: Mapping[str, float] = field(default_factory=dict)  # for inputs, by edge
    blocked_s: Mapping[str, float] = field(default_factory=dict)  # on outputs, by edge
    site: str = "main"


class Executor(Protocol):
    """Executes the serial program of a checked graph up to its cut.

    `stop` and `site_statuses` may be called from any thread; all else belongs to the thread that calls `run`.
    """

    began_s: float | None  # when the first firing could begin, by `time.perf_counter`
    ended_s: float | None  # when the cut was reached

    def run(self) -> Cut:
        """Fire the instances until the earliest cut; raise what made that impossible."""

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Ask for a cut at the next possible position."""

    def close(self) -> None:
        """Close all nodes and end all sites, in bounded time. A second call does nothing."""

    def hash_tokens(self, note: Note) -> None:
        """Call `note` with the hash of each token and of each version that is read; to be called before `run`."""

    @property
    def counts(self) -> Count:
        """Env steps and episodes of the collectors and train iterations of the first learner: so far, or at the cut."""

    def weights(self) -> dict[str, State]:
        """The learners' states at the cut, by `learner.port`."""

    def digest(self) -> str:
        """The `weights_digest` of the learners' states at the cut."""

    def instance_times(self) -> list[InstanceTimes]:
        """The times of each instance, in the order of the graph."""

    def site_statuses(self) -> dict[str, AgedStatus | None]:
        """The latest known status of each site; None for a site that has reported nothing yet."""

    def idle_s(self) -> dict[str, float]:
        """How long each site waited for a lease."""

    def irregularity_lines(self) -> list[str]:
        """What made this run differ from a deterministic one, and the errors of nodes that failed to close."""


def weights_digest(weights: Mapping[str, State]) -> str:
    """The SHA-256 over named states: names, dtypes, shapes and bytes of their sorted arrays."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        arrays = weights[key].arrays
        for name in sorted(arrays):
            array = arrays[name]
            digest.update(f"{key}/{name}:{array.dtype}:{array.shape};".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
