"""The engine: executes the serial program of a graph, up to a cut.

One site fires the whole program in its own order, so nothing beyond a cut is ever done and nothing has to be
taken back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal, Protocol

from flowrl.check import Checked
from flowrl.context import Context, Record, Verdict
from flowrl.errors import FlowError, NodeError
from flowrl.graph import Limits
from flowrl.program import Paced, Part
from flowrl.runner import Runner
from flowrl.state import Count, State
from flowrl.wiring import Wired, make

Reason = Literal["verdict", "steps", "train_iters", "rounds", "time", "interrupt", "done"]
Step = tuple[
    Runner, int, Callable[[], None] | None, bool
]  # who, how often, what follows each firing, may starve

RETRIES = 3  # firings that `on_failure: restart` tries again before it gives up


class Sink(Protocol):
    """Who is told what nodes record, in the order of the program."""

    def record(self, runner: Runner, record: Record) -> None:
        """One record of one firing."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The position that ended a run, and what had been done there."""

    reason: Reason
    why: str
    rounds: int
    done: Count


@dataclass(slots=True)
class Happened:
    """What made this run differ from a deterministic one, if anything did."""

    restarts: int = 0
    ignored: int = 0
    dropped: int = 0
    lines: list[str] = field(default_factory=list)


class _Cut(Exception):
    """Ends the program from within."""

    def __init__(self, reason: Reason, why: str) -> None:
        self.reason, self.why = reason, why
        super().__init__(why)


class Engine:
    """Runs a sound graph in one thread."""

    def __init__(
        self, checked: Checked, sink: Sink, seed: int | None = None, limits: Limits | None = None
    ) -> None:
        self.checked, self.sink = checked.demand(), sink
        self.graph = checked.graph
        self.limits = limits or self.graph.limits
        self.seed = self.graph.seed if seed is None else seed
        self.wired: Wired = make(checked, self.seed)
        self.happened = Happened()
        self.rounds = 0
        self.asked: tuple[Reason, str] | None = None  # a cut that somebody outside asks for
        self._verdict: str | None = None
        self._deadline_s = float("inf")
        self._learners = [r for n in self.graph.role("learner") for r in self.wired.runners[n]]
        self._collectors = [r for r in self.wired.all() if r.role == "collector"]
        for runner in self.wired.all():
            runner.on_record = self._record

    # what has been done

    @property
    def done(self) -> Count:
        """Env steps and episodes of the collectors, and the first learner's firings."""
        return Count(
            sum(r.did.env_steps for r in self._collectors),
            sum(r.did.episodes for r in self._collectors),
            self._learners[0].fired if self._learners else 0,
        )

    def weights(self) -> dict[str, State]:
        """The newest version of every learner's states, by `learner.port`."""
        found = {}
        for runner in self._learners:
            for name, port in runner.spec.cls.ports.items():
                if (
                    port.kind == "state"
                    and hasattr(port, "type")
                    and type(port).__name__ == "StateOut"
                ):
                    state = runner.node.state(name)
                    found[f"{runner.key}.{name}"] = State(
                        state.arrays, state.command, runner.fired, runner.ctx.clock
                    )
        return found

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Cut at the next learner firing or round's end (from another thread, or a signal)."""
        self.asked = (reason, why)

    # the program

    def run(self) -> Cut:
        """Execute the program until the earliest cut; nodes stay open for whoever looks at them."""
        meter = next(iter(self.wired.all())).meter
        meter.last_s = time.perf_counter()
        if self.limits.time_s is not None:
            self._deadline_s = meter.last_s + self.limits.time_s
        try:
            self._warm_up()
            self._rounds()
        except _Cut as cut:
            reason, why = cut.reason, cut.why
        else:
            raise AssertionError("the program ended without a cut")
        self._count_drops()
        return Cut(reason, why, self.rounds, self.done)

    def _warm_up(self) -> None:
        for warm in self.checked.program.warmup:
            settings = warm.phase.settings
            before = {n: self._reconfigure(n, values) for n, values in settings.items()}
            self.wired.connect([warm.part])
            steps = self._steps(warm.part)
            for _ in range(warm.rounds):
                self._round(steps)
                self._between()
            for name, values in before.items():
                self._reconfigure(name, values)
        if self.checked.program.warmup:
            self.wired.connect([self.checked.program.round])

    def _reconfigure(self, name: str, values: Any) -> dict[str, Any]:
        """Set a phase's values; gives the values that the graph has."""
        for runner in self.wired.runners[name]:
            try:
                runner.node.reconfigure(**values)
            except Exception as error:
                raise NodeError(
                    runner.key, f"taking the settings {', '.join(values)}", error
                ) from error
        return {key: getattr(self.graph.nodes[name].config, key) for key in values}

    def _rounds(self) -> None:
        steps = self._steps(self.checked.program.round)
        if not steps:
            raise _Cut("done", "no node fires in rounds")
        limit = self.limits.steps
        while True:
            self._round(steps)
            self.rounds += 1
            if limit is not None and sum(r.did.env_steps for r in self._collectors) >= limit:
                raise _Cut("steps", f"{limit} env steps were asked for")
            if self.rounds == self.limits.rounds:
                raise _Cut("rounds", f"{self.rounds} rounds were asked for")
            self._between()

    def _round(self, steps: list[Step]) -> None:
        """All firings of one round."""
        runner = steps[0][0]
        try:
            for runner, times, after, starves in steps:
                if after is None and not starves:
                    fire = runner.fire
                    for _ in repeat(None, times):
                        fire()
                else:
                    for _ in repeat(None, times):
                        if not starves or runner.ready():
                            runner.fire()
                            if after is not None:
                                after()
        except (_Cut, FlowError):
            raise
        except Exception as error:
            raise self._failure(runner, error) from error
        for feed in self.wired.feeds.values():
            feed.end_round()

    def _between(self) -> None:
        """Between rounds: what the clock or somebody outside wants."""
        if self.asked is not None:
            raise _Cut(*self.asked)
        if self._verdict is not None:
            raise _Cut("verdict", self._verdict)
        if self.meter_s() >= self._deadline_s:
            raise _Cut("time", f"{self.limits.time_s:g} s were asked for")

    def meter_s(self) -> float:
        """When the last firing ended."""
        return next(iter(self.wired.all())).meter.last_s

    def _steps(self, part: Part) -> list[Step]:
        """A part as a flat list of runners, with what follows their firings."""
        starving = self._starving(part)
        return [
            (runner, part.firings[name], self._after(runner, name), name in starving)
            for name in part.order
            for runner in self._guarded(name)
        ]

    def _guarded(self, name: str) -> list[Runner]:
        """A node's runners; one that may fail fires through its guard."""
        runners = self.wired.runners[name]
        if self.graph.nodes[name].on_failure != "stop":
            for runner in runners:
                runner.fire = _Guard(self, runner).fire
        return runners

    def _starving(self, part: Part) -> set[str]:
        """Nodes that may find too few tokens, because somebody upstream drops them."""
        found: set[str] = set()
        for name in part.order:
            for edge in part.edges:
                if edge.to.node == name and (
                    edge.when_full == "drop_oldest" or any(s.node in found for s in edge.sources)
                ):
                    found.add(name)
        return found

    def _after(self, runner: Runner, name: str) -> Callable[[], None] | None:
        """What follows each firing of a learner, and of a node whose state paces others."""
        paced = [
            (p.every, self._paced_steps(p))
            for p in self.checked.program.paced
            if p.source.node == name and runner.ctx.replica == 0
        ]
        learner = bool(self._learners) and runner is self._learners[0]
        if not paced and not learner:
            return None
        limit = self.limits.train_iters if learner else None

        def after() -> None:
            for every, steps in paced:
                if runner.fired % every == 0:
                    self._paced(steps)
            if self._verdict is not None:
                raise _Cut("verdict", self._verdict)
            if learner:
                if runner.fired == limit:
                    raise _Cut("train_iters", f"{limit} train iterations were asked for")
                if self.asked is not None:
                    raise _Cut(*self.asked)
                if runner.meter.last_s >= self._deadline_s:
                    raise _Cut("time", f"{self.limits.time_s:g} s were asked for")

        return after

    def _paced_steps(self, paced: Paced) -> list[Step]:
        return self._steps(paced.part)

    def _paced(self, steps: Iterable[Step]) -> None:
        """One firing of a paced part."""
        for runner, times, after, starves in steps:
            for _ in repeat(None, times):
                if starves and not runner.ready():
                    continue
                try:
                    runner.fire()
                except (_Cut, FlowError):
                    raise
                except Exception as error:
                    raise self._failure(runner, error) from error
                if after is not None:
                    after()

    # what nodes tell

    def _record(self, runner: Runner, record: Record) -> None:
        if isinstance(record, Verdict) and self._verdict is None:
            self._verdict = record.reason
        self.sink.record(runner, record)

    def _failure(self, runner: Runner, error: Exception) -> NodeError:
        return NodeError(runner.key, f"firing {runner.fired} (round {self.rounds})", error)

    def _count_drops(self) -> None:
        self.happened.dropped = sum(d.dropped for ds in self.wired.dropping.values() for d in ds)
        if self.happened.dropped:
            self.happened.lines.append(f"{self.happened.dropped} tokens were dropped")

    def digest(self) -> str:
        """The SHA-256 over the learners' weights, sorted by name."""
        return digest_of(self.weights())

    def close(self) -> list[BaseException]:
        """Close all nodes; what they raised."""
        return self.wired.close()


class _Guard:
    """Fires a node whose failures the graph allows: with a fresh node (`restart`), or not at all (`ignore`)."""

    def __init__(self, engine: Engine, runner: Runner) -> None:
        self.engine, self.runner = engine, runner
        self.plain = runner.fire

    def fire(self) -> None:
        runner, happened = self.runner, self.engine.happened
        queues = [q for queues, _ in runner.waits_for for q in queues]
        before = [q.copy() for q in queues]
        for attempt in range(RETRIES + 1):
            try:
                self.plain()
                return
            except FlowError:
                raise
            except Exception as error:
                line = f"{runner.key}, firing {runner.fired}: {type(error).__name__}: {error}"
                happened.lines.append(line)
                self.engine.sink.record(runner, line)
                runner.ctx.records.clear()
                if runner.spec.on_failure == "ignore":
                    happened.ignored += 1
                    runner.fired += 1
                    return
                if attempt == RETRIES:
                    raise
                happened.restarts += 1
                for queue, tokens in zip(queues, before, strict=True):
                    queue.clear()
                    queue.extend(tokens)
                self._renew()

    def _renew(self) -> None:
        """The same node, made anew; its context (and so its counters) goes on."""
        runner = self.runner
        old = runner.node
        links = {
            n: getattr(old, n)
            for n, p in runner.spec.cls.ports.items()
            if type(p).__name__ == "Link"
        }
        old.close()
        context: Context = runner.ctx
        runner.node = runner.spec.cls(config=runner.spec.config, context=context, **links)
        runner._call = runner.node.fire


def digest_of(weights: dict[str, State]) -> str:
    """The SHA-256 over named states: names, dtypes, shapes and bytes of their arrays, sorted by name."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        arrays = weights[key].arrays
        for name in sorted(arrays):
            array = arrays[name]
            digest.update(f"{key}/{name}:{array.dtype}:{array.shape};".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
