"""The context: what a node knows of the run it is in, and what it can tell the run."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Schema
from flowrl.core.state import EMPTY_CLOCK, Clock, Count, State

# beside each row of metrics
SOURCE_COLUMNS = ("node", "role", "firing", "env_steps", "episodes", "train_iters")


@dataclass(frozen=True, slots=True)
class MetricsRecord:
    """Numbers of one firing."""

    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A state worth a checkpoint."""

    name: str
    state: State
    info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """The run has reached its goal: cut right after this firing."""

    reason: str


@dataclass(frozen=True, slots=True)
class IrregularityRecord:
    """Something that made this run differ from another of the same graph and seed, so many times."""

    what: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class DeferredEffect:
    """Something to be done outside of the run, once no cut can take the firing back."""

    do: Callable[[], None]


# a str is a line of the node's log
Record = (
    MetricsRecord | CheckpointRecord | VerdictRecord | IrregularityRecord | DeferredEffect | str
)
EffectTiming = Literal["at once", "later", "never"]


@dataclass(slots=True, eq=False)
class Context:
    """Name, randomness, counters, surroundings; and the records of the current firing."""

    name: str
    replica: int = 0
    seed: int = 0
    torch_threads: int = 1
    inputs: Mapping[str, Schema | None] = field(
        default_factory=dict
    )  # columns of the stream inputs
    outs: Mapping[str, Schema | None] = field(default_factory=dict)  # columns of the stream outputs
    rates: Mapping[str, int] = field(
        default_factory=dict
    )  # every stream port's rate, `auto` worked out
    consumed_outputs: frozenset[str] | None = None  # outputs that somebody takes now; None: all
    clock: Clock = EMPTY_CLOCK  # the causal past of what this node holds, its own firings included
    records: list[Record] = field(default_factory=list)
    has_pending: bool = False  # something was counted or recorded in this firing
    effect_timing: EffectTiming = (
        "at once"  # when `outside` does what it is given: at once, by hand
    )
    restarts: int = 0  # how often the node was made anew (`on_failure: restart`)
    on_pending: Callable[[], None] = lambda: (
        None
    )  # how a service's client learns that it has told something
    _pending_count: Count | None = None

    @property
    def key(self) -> str:
        """The instance's name."""
        return instance_key(self.name, self.replica)

    def seed_for(self, purpose: str) -> int:
        """A 63-bit seed of this node's own for one purpose, from the run's seed, name and replica.

        A node that was made anew does not play again what made it fail.
        """
        again = f"/restart {self.restarts}" if self.restarts else ""
        text = f"{self.seed}/{self.name}/{self.replica}/{purpose}{again}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1

    def rng(self, purpose: str) -> np.random.Generator:
        """A random stream of this node's own for one purpose."""
        return np.random.Generator(np.random.PCG64(self.seed_for(purpose)))

    def is_consumed(self, port: str) -> bool:
        """Whether somebody takes what this output gives in the current phase."""
        return self.consumed_outputs is None or port in self.consumed_outputs

    def count(self, env_steps: int = 0, episodes: int = 0) -> None:
        """This firing stepped envs so often, and ended so many episodes."""
        self.mark_pending()
        old = self._pending_count or Count()
        self._pending_count = Count(old.env_steps + env_steps, old.episodes + episodes)

    def metrics(self, values: Mapping[str, float]) -> None:
        """Report numbers of this firing."""
        taken = [name for name in values if name in SOURCE_COLUMNS]
        if taken:
            raise ValueError(
                f"a metric cannot be named '{taken[0]}': that says where it was measured"
            )
        self.emit(MetricsRecord({name: float(value) for name, value in values.items()}))

    def log(self, line: str) -> None:
        """A line of the node's log."""
        self.emit(line)

    def save_checkpoint(self, name: str, state: State, **info: Any) -> None:
        """Write this state as a checkpoint of the run."""
        self.emit(CheckpointRecord(name, state, info))

    def verdict(self, reason: str) -> None:
        """Say that the run has reached its goal."""
        self.emit(VerdictRecord(reason))

    def report_irregularity(self, what: str, times: int = 1) -> None:
        """Report what made this run differ from another: it is in the run's summary."""
        self.emit(IrregularityRecord(what, times))

    def on_commit(self, do: Callable[[], None]) -> None:
        """Do something outside of the run for this firing (write a file, say), once it is sure that it counts.

        On several sites a node may get past the cut before that is known; what it did there shall leave nothing.
        """
        if self.effect_timing == "never":
            raise RuntimeError(
                "a service cannot do things outside of the run: its client's firings say "
                "what counts; let the client do it"
            )
        if self.effect_timing == "at once":
            do()
        else:
            self.emit(DeferredEffect(do))

    def emit(self, record: Record) -> None:
        """Add a record of this firing."""
        self.mark_pending()
        self.records.append(record)

    def mark_pending(self) -> None:
        """Something was counted or recorded: the engine looks after the firing."""
        if not self.has_pending:
            self.has_pending = True
            self.on_pending()

    def take_count(self) -> Count | None:
        """What the firing counted; forgotten by this call (for the engine)."""
        did, self._pending_count = self._pending_count, None
        return did

    def take_records(self) -> list[Record]:
        """What the firing told; forgotten by this call (for the engine)."""
        records, self.records = self.records, []
        self.has_pending = False
        return records

    def now_s(self) -> float:
        """Seconds on a monotonic clock: for reports only, nothing computed may depend on it."""
        return time.perf_counter()


def instance_key(node: str, replica: int) -> str:
    """An instance's name: `collector`, or `collector#2` for a replica."""
    return f"{node}#{replica}" if replica else node
