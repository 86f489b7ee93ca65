"""A run: a sound graph, executed up to its cut, with a folder that tells everything about it."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowrl.check import Checked
from flowrl.context import Keep, Metrics, Record
from flowrl.draw.dot import to_dot
from flowrl.engine import Cut, Engine
from flowrl.environment import environment, limit_threads
from flowrl.errors import RunError, UsageError
from flowrl.expand import expand
from flowrl.folder import RunFolder, new_folder
from flowrl.graph import Limits
from flowrl.report import bottleneck_sentence
from flowrl.result import RunResult, Status
from flowrl.runner import Runner
from flowrl.state import Count

ENDS: Mapping[str, Status] = {"verdict": "solved", "interrupt": "interrupted"}


class Watcher:
    """Who looks on while a run goes; the base looks away."""

    def begin(self, run: Run) -> None:
        """The run begins."""

    def event(self, run: Run, runner: Runner, record: Record) -> None:
        """A node told something."""

    def end(self, run: Run) -> None:
        """The run has ended, however it did."""


class Run:
    """One run, from making its nodes to writing its summary."""

    def __init__(
        self,
        checked: Checked,
        *,
        seed: int | None = None,
        limits: Limits | None = None,
        out: str | Path | None = None,
        placement: str = "serial",
        watcher: Watcher | None = None,
    ) -> None:
        self.checked = checked.demand()
        self.graph = checked.graph
        if placement != "serial":
            raise UsageError(
                f"--placement {placement}: this version runs graphs in one thread only; use 'serial'"
            )
        self.placement = placement
        self.graph.limits = self.limits = limits or self.graph.limits
        self.seed = self.graph.seed if seed is None else seed
        self.graph.seed = self.seed
        self.watcher = watcher or Watcher()
        self.folder = RunFolder(new_folder(self.graph.name.replace("/", "_"), out))
        self.engine: Engine | None = None
        self.begun_s = time.perf_counter()
        self.eval_return: float | None = None
        self.best_return: float | None = None
        self.interrupts = 0

    @property
    def wall_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.begun_s

    def busy_s(self) -> dict[str, float]:
        """Seconds that each node has fired for."""
        return {r.key: r.busy_s for r in self.engine.wired.all()} if self.engine else {}

    def record(self, runner: Runner, record: Record) -> None:
        """The engine's sink: write it down, remember what the summary tells, show it."""
        self.folder.record(runner, record)
        if (
            isinstance(record, Metrics)
            and runner.role == "evaluator"
            and "return_mean" in record.values
        ):
            self.eval_return = float(record.values["return_mean"])
        elif isinstance(record, Keep) and record.name == "best" and "eval_return" in record.info:
            self.best_return = float(record.info["eval_return"])
        self.folder.timings(self.wall_s, self.busy_s())
        self.watcher.event(self, runner, record)

    def run(self) -> RunResult:
        """Run until the cut; raises what stopped it, after the folder says so too."""
        self._write_beginning()
        try:
            limit_threads(self.graph.torch_threads)
            self.engine = Engine(self.checked, self, self.seed, self.limits)
            limit_threads(self.graph.torch_threads)  # and the libraries that its nodes have loaded
            self.watcher.begin(self)
            with self._interrupts():
                cut = self.engine.run()
            return self._finish(cut)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self.watcher.end(self)
            if self.engine is not None:
                self.engine.close()
            self.folder.close()

    def _write_beginning(self) -> None:
        folder = self.folder
        folder.text("graph.yaml", expand(self.graph))
        folder.text("graph.dot", to_dot(self.checked))
        where = self.graph.files[-1].parent if self.graph.files else Path()
        folder.json(
            "environment.json",
            {**environment(where), "seed": self.seed, "placement": self.placement},
        )

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) asks for a cut, the second stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            self.interrupts += 1
            if self.interrupts > 1 or self.engine is None:
                raise KeyboardInterrupt
            self.engine.stop("interrupt", "interrupted")

        before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _finish(self, cut: Cut) -> RunResult:
        assert self.engine is not None
        wall_s = self.wall_s
        weights = self.engine.weights()
        if weights:
            self.folder.checkpoint("last", weights, {"why": cut.why})
        self.folder.timings(wall_s, self.busy_s(), now=True)
        status = ENDS.get(cut.reason, "finished")
        result = self.result(status, cut.why, wall_s, self.engine.digest(), self._repeat(cut))
        self.folder.json("summary.json", result.as_dict())
        return result

    def result(
        self,
        status: Status,
        why: str,
        wall_s: float | None = None,
        digest: str = "",
        repeat: str = "",
    ) -> RunResult:
        """The summary as things are now."""
        wall_s = self.wall_s if wall_s is None else wall_s
        done = self.engine.done if self.engine else Count()
        return RunResult(
            graph=self.graph.name,
            run_dir=str(self.folder.path),
            placement=self.placement,
            status=status,
            deterministic=self.checked.deterministic,
            env_steps=done.env_steps,
            train_iters=done.train_iters,
            episodes=done.episodes,
            eval_return=self.eval_return,
            best_return=self.best_return,
            wall_s=round(wall_s, 3),
            env_steps_per_s=round(done.env_steps / wall_s, 1) if wall_s else 0.0,
            bottleneck=bottleneck_sentence(self.busy_s(), wall_s),
            digest=digest,
            seed=self.seed,
            why=why,
            repeat=repeat,
            happened=tuple(self.engine.happened.lines) if self.engine else (),
        )

    def _repeat(self, cut: Cut) -> str:
        """Where the clock or a person chose the cut: the words that end a run there again; the graph says it too."""
        if cut.reason not in ("time", "interrupt") or not cut.done.train_iters:
            return ""
        limits = replace(self.limits, time_s=None, train_iters=cut.done.train_iters)
        self.folder.text("graph.yaml", expand(replace(self.graph, limits=limits)))
        return f"flowrl run {self.folder.path / 'graph.yaml'} --train-iters {cut.done.train_iters}"

    def _fail(self, error: BaseException) -> None:
        """The folder tells what stopped the run; a disk that is full cannot, and the first cause goes on."""
        stopped = isinstance(error, KeyboardInterrupt)
        why = "stopped at once" if stopped else str(error)
        try:
            self.folder.json(
                "summary.json", self.result("interrupted" if stopped else "failed", why).as_dict()
            )
            if not stopped:
                self.folder.text("error.txt", "".join(traceback.format_exception(error)))
        except RunError:
            pass  # the disk is what failed: the first cause is on its way to whoever started the run
