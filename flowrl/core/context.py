"""The context of a node: its name, seeds, counters and ports, and the records that it emits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from flowrl.core.batch import Schema
from flowrl.core.histogram import histogram_of
from flowrl.core.records import (
    CHECKPOINTS,
    SOURCE_COLUMNS,
    CheckpointRecord,
    CutReport,
    DeferredEffect,
    HistogramsRecord,
    IrregularityRecord,
    LinesRecord,
    MetricsRecord,
    Record,
    VerdictRecord,
)
from flowrl.core.replica_group import ReplicaGroup
from flowrl.core.state import EMPTY_CLOCK, Clock, Count, State

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServiceExample:
    """The type and the parameters of a node that offers a service."""

    cls: type[Any]
    config: Any


EffectTiming = Literal["at once", "later", "never"]


@dataclass(slots=True, eq=False)
class Context:
    """The surroundings of one instance of a node, and the counts and records of its current firing."""

    name: str
    replica: int = 0
    seed: int = 0
    torch_threads: int = 1
    # The columns of the stream inputs and outputs; None where tokens are not tables.
    inputs: Mapping[str, Schema | None] = field(default_factory=dict)
    outs: Mapping[str, Schema | None] = field(default_factory=dict)
    # The rate of every stream port, with numbers in place of `auto`.
    rates: Mapping[str, int] = field(default_factory=dict)
    # The roles of the nodes that are linked to this one.
    client_roles: frozenset[str] = frozenset()
    # For each optional link that is not connected: a node of the graph that offers such a service.
    examples: Mapping[str, ServiceExample] = field(default_factory=dict)
    # The outputs with a consumer in the current phase; None: all.
    consumed_outputs: frozenset[str] | None = None
    # The causal past of the node's state, its own firings included.
    clock: Clock = EMPTY_CLOCK
    records: list[Record] = field(default_factory=list)
    # Whether this firing has counted or recorded anything.
    has_pending: bool = False
    # Whether the node may give a verdict.
    may_end_run: bool = True
    # When `on_commit` performs effects. Without an engine it performs them at once.
    effect_timing: EffectTiming = "at once"
    # What `report_at_cut` was last called with. With an engine it is a record.
    unreported: Callable[[], None] | None = None
    # Whether an earlier part of the run may have made files that the node finds. Their content is in the snapshot that
    # is loaded before the first firing.
    continues: bool = False
    # Whether `state_dict` may return a `LiveArray` instead of a copy, because a snapshot is being saved.
    reads_live_arrays: bool = False
    # Whether `load_state_dict` may keep and change the arrays of the state, because nothing else will read them.
    keeps_loaded_arrays: bool = False
    # How often the node was replaced by a new one (`on_failure: restart`).
    restarts: int = 0
    # How often its site was lost and started again, while the other sites of the run went on.
    site_restarts: int = 0
    # The time of parts of the node's firings, by name; see `timed`.
    parts_s: dict[str, float] = field(default_factory=dict)
    # The replicas that fire together with this one, if they form a group (`Node.replicas_form_group`).
    group: ReplicaGroup | None = None
    # Called when a firing first counts or records something. A service notifies its client by it.
    on_pending: Callable[[], None] = lambda: None
    _pending_count: Count | None = None

    @property
    def key(self) -> str:
        return instance_key(self.name, self.replica)

    @property
    def counted_as(self) -> str:
        """The key in clocks under which firings are counted. Those of a group are one, whatever its replicas."""
        return self.key if self.group is None else self.name

    def seed_for(self, purpose: str) -> int:
        """Return a 63-bit seed for one purpose, derived from the run's seed and the node's name and replica.

        The replicas of a group have the same seed. After a restart of the node or of its site the seed is another one:
        the node shall not repeat itself.
        """
        restart = f"/restart {self.restarts}" if self.restarts else ""
        if self.site_restarts:
            restart += f"/site restart {self.site_restarts}"
        replica = self.replica if self.group is None else 0
        text = f"{self.seed}/{self.name}/{replica}/{purpose}{restart}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a random generator for one purpose, seeded by `seed_for`."""
        return np.random.Generator(np.random.PCG64(self.seed_for(purpose)))

    def is_consumed(self, port: str) -> bool:
        """Return whether an output has a consumer in the current phase."""
        return self.consumed_outputs is None or port in self.consumed_outputs

    def count(self, env_steps: int = 0, episodes: int = 0) -> None:
        """Count env steps and ended episodes of this firing."""
        self.mark_pending()
        old = self._pending_count or Count()
        self._pending_count = Count(old.env_steps + env_steps, old.episodes + episodes)

    def metrics(self, values: Mapping[str, float]) -> None:
        """Record metrics of this firing."""
        reserved = [name for name in values if name in SOURCE_COLUMNS]
        if reserved:
            raise ValueError(f"a metric cannot be named '{reserved[0]}'; every row has that column")
        self.emit(MetricsRecord({name: float(value) for name, value in values.items()}))

    def histograms(self, arrays: Mapping[str, Any]) -> None:
        """Record how the numbers of arrays are spread, for TensorBoard. Arrays without finite numbers are left out."""
        made = {name: histogram_of(values) for name, values in arrays.items()}
        found = {name: histogram for name, histogram in made.items() if histogram is not None}
        if found:
            self.emit(HistogramsRecord(found))

    def log(self, line: str) -> None:
        """Add a line to the node's log."""
        self.emit(line)

    def save_checkpoint(
        self,
        name: str,
        state: State | Mapping[str, State],
        *,
        replaces: str = "",
        folder: str = CHECKPOINTS,
        **info: Any,
    ) -> None:
        """Write a state as a checkpoint of the run; remove the one that it replaces, if there is one.

        Several states, those of the node's inputs by name, become one checkpoint.
        """
        states = {"": state} if isinstance(state, State) else dict(state)
        self.emit(CheckpointRecord(name, states, info, replaces, folder))

    def append_lines(self, file: str, lines: Sequence[str]) -> None:
        """Append lines to a file in a folder of the run, such as `league/payoff.jsonl`.

        A run that continues goes on with the lines that it had written at its snapshot.
        """
        folder, _, name = file.partition("/")
        if not folder or not name.endswith(".jsonl") or ".." in folder or "/" in name:
            raise ValueError(
                f"append_lines: the file is '{file}'; expected FOLDER/NAME.jsonl, within the folder of the run"
            )
        self.emit(LinesRecord(file, tuple(lines)))

    def verdict(self, reason: str) -> None:
        """End the run right after this firing, because it has reached its goal."""
        if not self.may_end_run:
            raise RuntimeError(
                f"'{self.key}' gives a verdict, and its class says `may_end_run = False`; "
                "set `may_end_run = True` in a subclass that gives verdicts"
            )
        self.emit(VerdictRecord(reason))

    def report_irregularity(self, what: str, times: int = 1) -> None:
        """Record an event that makes this run differ from others; the run's summary lists it."""
        self.emit(IrregularityRecord(what, times))

    def on_commit(self, do: Callable[[], None]) -> None:
        """Perform an effect outside the run, such as writing a file, once this firing is known to lie before the cut.

        On several sites a node may pass the cut before the cut is known. Its firings beyond the cut have no effects.
        """
        self._refuse_in_service("effects outside the run", "on_commit")
        if self.effect_timing == "at once":
            do()
        else:
            self.emit(DeferredEffect(do))

    def report_at_cut(self, make: Callable[[], None] | None) -> None:
        """Call `make`, which reports what is in no report yet, if the run is cut before the next call of this method.

        A firing calls it with what is left to report after this firing, or with None. The node may fire again before
        `make` is called: what it reads must not change. It reports by `metrics`, `histograms`, `log` or `append_lines`.
        """
        self._refuse_in_service("reports at the cut", "report_at_cut")
        if self.effect_timing == "at once":
            self.unreported = make
        else:
            self.emit(CutReport(make))

    def _refuse_in_service(self, what: str, method: str) -> None:
        if self.effect_timing == "never":
            raise RuntimeError(
                f"a service cannot have {what}, because they belong to a firing of its client; "
                f"let the client call {method}"
            )

    def emit(self, record: Record) -> None:
        """Add a record of this firing."""
        self.mark_pending()
        self.records.append(record)

    def mark_pending(self) -> None:
        """Have the engine emit counts and records after the firing."""
        if not self.has_pending:
            self.has_pending = True
            self.on_pending()

    def take_count(self) -> Count | None:
        """Return and forget what the firing counted (for the engine)."""
        count, self._pending_count = self._pending_count, None
        return count

    def take_records(self) -> list[Record]:
        """Return and forget the records of the firing (for the engine)."""
        records, self.records = self.records, []
        self.has_pending = False
        return records

    def timed(self, part: str, function: Callable[..., T]) -> Callable[..., T]:
        """Return the function. The time of its calls is shown as a part of the node's time, such as `policy`."""
        parts_s, now = self.parts_s, time.perf_counter
        parts_s.setdefault(part, 0.0)

        def call(*arguments: Any) -> T:
            began_s = now()
            result = function(*arguments)
            parts_s[part] += now() - began_s
            return result

        return call

    def now_s(self) -> float:
        """Return the seconds of a monotonic clock. Only reports may depend on it, never results."""
        return time.perf_counter()


def instance_key(node: str, replica: int) -> str:
    """Return an instance's name: `collector`, or `collector#2` for a replica."""
    return f"{node}#{replica}" if replica else node
