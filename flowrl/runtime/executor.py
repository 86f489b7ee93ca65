"""The interface by which a run executes a checked graph: `SerialExecutor` on one site, `Coordinator` on several."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from flowrl.core.state import Count, State
from flowrl.runtime.snapshot_schedule import Snapshot, SnapshotSink
from flowrl.runtime.status import NodeStats, SiteStatus
from flowrl.runtime.token_hashing import TokenHashSink
from flowrl.runtime.token_summary import PeekRequest, TokenSummary

Reason = Literal["verdict", "steps", "train_iters", "rounds", "time", "interrupt", "done"]
CutReason = tuple[Reason, str]  # a reason, and the same in words

LIMIT_NOUNS = {"train_iters": "train iteration", "steps": "env step", "rounds": "round"}


@dataclass(frozen=True, slots=True)
class Cut:
    """Why and where a run ended: the number of completed rounds, and the counts at that position."""

    reason: Reason
    why: str  # the reason in words
    rounds: int  # without those of the warm-up
    counts: Count


class Executor(Protocol):
    """Executes the serial program of a checked graph up to its cut.

    `stop`, `peek` and `site_statuses` may be called from any thread; all else belongs to the thread that calls `run`.
    """

    began_s: float | None  # the start of the first firing, by `time.perf_counter`
    ended_s: float | None  # when the cut was reached
    snapshots: SnapshotSink | None  # to be set before `run`
    summaries: dict[int, TokenSummary]  # by the number of the request; who reads one removes it

    def continue_from(self, snapshot: Snapshot) -> None:
        """Begin where a snapshot was saved. To be called before `run`."""

    def run(self) -> Cut:
        """Fire the instances until the earliest cut, or raise the error that prevents it."""

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Ask for a cut at the next possible position."""

    def peek(self, request: PeekRequest) -> None:
        """Ask for the summary of what an instance gives next. It is found in `summaries` later."""

    def close(self) -> None:
        """Close all nodes and end all sites, in bounded time. A second call does nothing."""

    def hash_tokens(self, sink: TokenHashSink, recorded: Collection[str] = ()) -> None:
        """Pass the hash of each token, and of each version that is read, to `sink`. To be called before `run`.

        If inputs are `recorded`, only the hashes of their edges are passed, with the tokens.
        """

    @property
    def counts(self) -> Count:
        """The env steps and episodes of collectors and the first learner's train iterations, so far or at the cut."""

    def weights(self) -> dict[str, State]:
        """Return the learners' states at the cut, by `learner.port`."""

    def digest(self) -> str:
        """Return the `weights_digest` of the learners' states at the cut."""

    def node_stats(self) -> list[NodeStats]:
        """Return the statistics of each instance as last reported, in the order of the graph."""

    def site_statuses(self) -> list[SiteStatus]:
        """Return the status of each site, as recent as possible."""

    def idle_s(self) -> dict[str, float]:
        """Return how long each site waited for leases."""

    def irregularity_lines(self) -> list[str]:
        """Return what made this run differ from a deterministic one, and the errors of nodes that failed to close."""

    def warnings(self) -> list[str]:
        """Return what did not change the run and should be known: silent sites, and what was refused."""


def limit_reached(limit: Reason, amount: float) -> CutReason:
    """Return the reason of a cut by a limit; the amount is formatted as on the command line."""
    if limit == "time":
        return limit, f"{amount:g} s were asked for"
    noun = LIMIT_NOUNS[limit]
    return limit, f"1 {noun} was asked for" if amount == 1 else f"{amount} {noun}s were asked for"


def weights_digest(weights: Mapping[str, State]) -> str:
    """Return the SHA-256 over named states: names, dtypes, shapes and bytes of their sorted arrays."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        arrays = weights[key].arrays
        for name in sorted(arrays):
            array = arrays[name]
            digest.update(f"{key}/{name}:{array.dtype}:{array.shape};".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
