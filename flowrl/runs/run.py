"""A run: executes a sound graph up to its cut, and records everything about it in a folder."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import RunError, UsageError
from flowrl.core.project_modules import importable_modules
from flowrl.core.records import Record
from flowrl.core.state import Count
from flowrl.graph.expand import expand
from flowrl.graph.model import Limits
from flowrl.graph.settings import Setting, graph_settings
from flowrl.machine.crash_tracebacks import crash_tracebacks
from flowrl.machine.numerics import reset_numerics, settled_numerics
from flowrl.runs.failure_files import failure_files
from flowrl.runs.folder import ERROR_FILE, SUMMARY_FILE, RunFolder
from flowrl.runs.initial_files import write_environment, write_initial_files
from flowrl.runs.new_folder import create_run_folder
from flowrl.runs.query_answers import QueryAnswers
from flowrl.runs.query_server import answering_queries
from flowrl.runs.recording import Recording
from flowrl.runs.recovery import Recovery
from flowrl.runs.result import RunResult, Status
from flowrl.runs.run_sites import RunSites
from flowrl.runs.run_snapshots import ContinuedRun, RunSnapshots, make_snapshots
from flowrl.runs.run_status import timings_row
from flowrl.runs.stop_requests import StopRequests
from flowrl.runs.summary import EvaluationReturns, long_warmup_lines, summary_of
from flowrl.runs.watcher import Watcher
from flowrl.runtime.executor import Cut, Executor
from flowrl.runtime.interruptions import RunInterrupted
from flowrl.runtime.records import RecordSource
from flowrl.runtime.serial_executor import SerialExecutor
from flowrl.runtime.sites.coordinator import Coordinator
from flowrl.runtime.sites.site_failures import SiteLost
from flowrl.runtime.status import NodeStats

SLOW_CLOSE_S = 5.0
SLOW_CLOSE = "the nodes take long to close; Ctrl-C leaves them as they are and keeps the result"
STATUS_OF_REASON: Mapping[str, Status] = {"verdict": "solved", "interrupt": "interrupted"}


class Run:
    """One run, from making its folder to writing its summary."""

    def __init__(
        self,
        checked: CheckedGraph,
        *,
        seed: int | None = None,
        limits: Limits | None = None,
        out: str | Path | None = None,
        placement: str = "serial",
        rendezvous: Rendezvous | None = None,
        watcher: Watcher | None = None,
        hash_tokens: bool = False,
        begun_s: float | None = None,
        continued: ContinuedRun | None = None,
        saves_at_end: bool = False,
        recovers: bool = True,
    ) -> None:
        """`begun_s` is when the command or the call began, of `time.perf_counter`; by default, now.

        `continued` is the run that continues in its folder, or the parent's snapshot with which a fork begins. With
        `saves_at_end`, a snapshot is saved at the end, as in a graph that says how often they are saved. A run that
        `recovers` goes on from its newest snapshot when it loses a site.
        """
        self.begun_s = time.perf_counter() if begun_s is None else begun_s
        self.placement = placement
        given = checked.require_sound().graph
        self.seed = given.seed if seed is None else seed
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"the seed is {self.seed}; expected a whole number from 0 to 2^63 - 1")
        self.limits = limits or given.limits
        self.graph = replace(given, seed=self.seed, limits=self.limits)
        self.checked = replace(checked, graph=self.graph)
        self.sites = RunSites(self.checked, placement, rendezvous)
        self.out = out
        self.continued, self._saves_at_end = continued, saves_at_end
        # To be set before `run`. A run that is recorded does not recover.
        self.recording: Recording | None = None
        self.recovery = Recovery(self, recovers)
        self.snapshots: RunSnapshots | None = None
        self.hash_tokens = hash_tokens
        self.watcher = watcher or Watcher()
        self.folder: RunFolder | None = None
        self.executor: Executor | None = None
        self.making = ""  # the instance that is being made in this thread
        evaluators = self.graph.nodes_of_role("evaluator")
        first_learner = self.graph.first_learner or ""
        self._returns = EvaluationReturns(next(iter(evaluators), ""), first_learner)
        self.ended: RunResult | None = None
        self._stop_requests = StopRequests(self._ask_for_cut)
        self.left_open: tuple[str, ...] = ()
        self.hints: tuple[str, ...] = ()

    @property
    def wall_s(self) -> float:
        """Seconds since the command or the call began."""
        return time.perf_counter() - self.begun_s

    @property
    def setup_s(self) -> float:
        """Seconds before the first firing: imports, checks, and making the nodes."""
        began_s = self.training_began_s
        return (time.perf_counter() if began_s is None else began_s) - self.begun_s

    @property
    def training_s(self) -> float:
        """Seconds since the first firing began, until now or until the cut; with the time that recoveries took."""
        began_s = self.training_began_s
        if began_s is None:
            return 0.0
        ended_s = self.executor.ended_s if self.executor else None
        return (ended_s or time.perf_counter()) - began_s

    @property
    def training_began_s(self) -> float | None:
        """When the first firing began, of `time.perf_counter`; that of a run that has recovered may be lost."""
        if self.recovery.first_began_s is not None:
            return self.recovery.first_began_s
        return self.executor.began_s if self.executor else None

    @property
    def firing_s(self) -> float:
        """Seconds since the first firing of this executor began, until now or until the cut."""
        executor = self.executor
        if executor is None or executor.began_s is None:
            return 0.0
        return (executor.ended_s or time.perf_counter()) - executor.began_s

    @property
    def eval_return(self) -> float | None:
        """The return of the latest evaluation."""
        return self._returns.last

    @property
    def best_return(self) -> float | None:
        """The return of the evaluation that saved the best checkpoint."""
        return self._returns.best

    @property
    def run_dir(self) -> str:
        """The run's folder, which watchers find made."""
        return str(self.folder.path) if self.folder else ""

    @property
    def settings(self) -> dict[str, Setting]:
        """Every value that `--set` can change, by its key, with the seed of this run."""
        return graph_settings(self.graph)

    @property
    def counts(self) -> Count:
        """The env steps, episodes and train iterations so far, or at the cut."""
        found = self.executor.counts if self.executor else Count()
        if self.continued is None:
            return found
        begun = self.continued.snapshot.counts  # nodes whose state is not loaded yet count from 0
        return Count(*map(max, found, begun))

    def node_stats(self) -> list[NodeStats]:
        """The firings of each instance, and where its time went."""
        return self.executor.node_stats() if self.executor else []

    def timings(self) -> dict[str, Any]:
        """A row of `timings.jsonl`."""
        idle_s = self.executor.idle_s() if self.executor else {}
        return timings_row(self.node_stats(), idle_s, self.wall_s, self.counts)

    def run(self) -> RunResult:
        """Run until the cut. An error that ends the run is written to its folder and raised."""
        try:
            return self._run()
        except BaseException as error:
            if self._stop_requests.is_interruption(error):
                raise KeyboardInterrupt from error
            raise

    def _run(self) -> RunResult:
        answer = QueryAnswers(self).answer
        with (
            self._stop_requests.handling_signals(),
            settled_numerics(self.graph.torch_threads),
            importable_modules(self.graph.folders),
            crash_tracebacks(),
        ):
            folder = self.folder = self._open_folder()
            with answering_queries(self.graph.name, self.placement, folder.path, answer, self.show):
                try:
                    with self._stop_requests.interrupted_afterwards():
                        self.watcher.begin(self)
                    for line in self.sites.warnings:
                        self.show(f"warning: {line}")
                    write_initial_files(self, folder)
                    return self._finish(folder, self._execute_and_recover(folder))
                except BaseException as error:
                    self._fail(folder, error)
                    raise
                finally:
                    self._close(folder)

    def _open_folder(self) -> RunFolder:
        if self.continued is None or self.continued.folder is None:
            name = self.graph.name.replace("/", "_")
            return RunFolder(create_run_folder(name, self.seed, self.out))
        folder = RunFolder(self.continued.folder)
        folder.remove_end()
        self.rewind(folder, self.continued.mark)
        return folder

    def show(self, text: str) -> None:
        """Show a line to the user."""
        self.watcher.note(self, text)

    @property
    def why_without_cut(self) -> str:
        """How the run ended if a person did not wait for a cut, or if there was nothing to cut yet."""
        if self.training_began_s is None:
            return "stopped before the first firing"
        is_recovering = self.recovery.is_under_way
        return "stopped while it recovered from a loss" if is_recovering else "stopped at once"

    @property
    def is_stopping(self) -> bool:
        """Whether a signal or a command has asked for a cut."""
        return self._stop_requests.has_cut

    def require_no_stop(self) -> None:
        """Raise an exception if somebody has asked for a cut while nothing fires that could be cut."""
        if self.is_stopping:
            raise RunInterrupted

    def stop(self, now: bool = False) -> None:
        """Ask for a cut, as Ctrl-C does, or end the run at once, as a second Ctrl-C does. Any thread may call this."""
        self._stop_requests.stop(now)

    def _ask_for_cut(self, who: str) -> None:
        if self.executor is not None:  # otherwise `_execute` does this
            self.executor.stop("interrupt", who)
        self.watcher.stopping(self)

    def record(self, source: RecordSource, record: Record) -> None:
        """Write a record of the executor to the folder, and show it."""
        assert self.folder is not None
        with self._stop_requests.interrupted_afterwards():
            record = self._returns.take_in(source, record)
            self.folder.write_record(source, record)
            self.folder.append_timings(self.wall_s, self.timings)
            self.watcher.event(self, source, record)

    def result(self, status: Status, why: str, digest: str = "", repeat: str = "") -> RunResult:
        """The summary of the run up to now."""
        return summary_of(self, status, why, digest, repeat)

    @property
    def parent(self) -> dict[str, Any] | None:
        """The run from which this one was forked."""
        parent = self.continued.parent if self.continued else None
        return None if parent is None else asdict(parent)

    @property
    def is_resumed(self) -> bool:
        """Whether the run continues in its folder."""
        return self.continued is not None and not self.is_fork

    @property
    def is_fork(self) -> bool:
        """Whether the run begins from a snapshot of another one, in a folder of its own."""
        return self.continued is not None and self.continued.folder is None

    def mark(self) -> dict[str, Any]:
        """How far the run's records have been written, for the snapshot of this moment."""
        assert self.folder is not None
        returns = [self._returns.last, self._returns.best]
        return {"files": self.folder.mark(), "returns": returns}

    def rewind(self, folder: RunFolder, mark: Mapping[str, Any]) -> None:
        """Continue the run's files from a mark."""
        if damaged := folder.continue_after(mark["files"]):
            names = ", ".join(damaged)
            line = f"{names}: what the run had written there before its snapshot is missing"
            self.hints += (line,)
            self.show(f"warning: {line}")
        self._returns.last, self._returns.best = mark["returns"]

    # the parts of a run

    def _execute_and_recover(self, folder: RunFolder) -> Cut:
        """Execute the graph; after the loss of a site go on from the newest snapshot, if that is possible."""
        self.snapshots = make_snapshots(self, folder, self._saves_at_end)
        if self.sites.are_on_hosts:
            self.sites.open_to_hosts(folder.path, self.show)
            self.place_on_hosts(folder)
        self.recovery.begin()
        while True:
            try:
                return self._execute(folder)
            except SiteLost as loss:
                if not self.recovery.go_back(folder, loss):
                    raise

    def place_on_hosts(self, folder: RunFolder) -> None:
        """Wait for hosts, let them have sites of the run, and write down which hosts they are."""
        self.sites.place_on_hosts(self.show, self.require_no_stop)
        write_environment(self, folder)

    def _execute(self, folder: RunFolder) -> Cut:
        if self.sites.is_single:
            self.executor = SerialExecutor(
                self.checked, self, self.seed, self.limits, self._set_making, self._continues
            )
            # Modules that the nodes imported may have changed the numerics.
            reset_numerics(self.graph.torch_threads)
        else:
            self.executor = Coordinator(
                self.checked,
                self,
                self.sites.layout,
                self.seed,
                self._limits_left(),
                None if self.sites.hosts is None else self.sites.hosts.sites,
                self.show,
                self._continues,
                restarts_sites=self.recovery.is_wanted and self.recording is None,
            )
        self._stop_requests.can_cut = True
        self.executor.snapshots = self.snapshots
        if self.recovery.snapshot is not None:
            self.executor.continue_from(self.recovery.snapshot)
        if self.recording is not None:
            self.recording.begin(folder.absolute_path, self.graph, self.recovery.snapshot)
            self.executor.hash_tokens(self.recording.write, self.recording.inputs)
        elif self.hash_tokens:
            self.executor.hash_tokens(folder.open_token_file(self.graph))
        if self.is_stopping:
            self.executor.stop("interrupt", "flowrl stop")
        return self.executor.run()

    @property
    def _continues(self) -> bool:
        """Whether an earlier part of the run, in the same folder, may have made files that nodes find."""
        return self.is_resumed or self.recovery.count > 0

    def _limits_left(self) -> Limits:
        """The limits of the run. `time_s` counts what recoveries took, and what they took back."""
        if self.limits.time_s is None or self.recovery.first_began_s is None:
            return self.limits
        return replace(self.limits, time_s=max(self.limits.time_s - self.training_s, 0.0))

    def _set_making(self, instance: str) -> None:
        self.making = instance

    def _finish(self, folder: RunFolder, cut: Cut) -> RunResult:
        assert self.executor is not None
        weights, digest = self.executor.weights(), self.executor.digest()
        if self.recording is not None:
            self.recording.end(cut.counts.train_iters)
        if weights:
            folder.write_checkpoint("last", weights, {"why": cut.why})
        folder.append_timings(self.wall_s, self.timings, now=True)
        if self.snapshots is not None:
            self.snapshots.end()
            if cut.reason != "interrupt" and not (self.is_resumed or self._saves_at_end):
                self.snapshots.remove_precautions()
        self._close_nodes()  # before the summary, which names the nodes that failed to close
        if self.sites.hosts is not None:
            self.sites.hosts.close(cut.why)
        self.hints += long_warmup_lines(self.checked, self.limits, cut)
        status = STATUS_OF_REASON.get(cut.reason, "finished")
        result = self.result(status, cut.why, digest, self._repeat_command(folder, cut))
        folder.write_json(SUMMARY_FILE, result.as_dict())
        folder.end_tensorboard(success=True)
        self.ended = result
        return result

    def _close_nodes(self) -> None:
        """Close the nodes. The result is known, so Ctrl-C leaves a node that does not close, and keeps the result."""
        assert self.executor is not None
        self._stop_requests.can_cut = False
        notice = threading.Timer(SLOW_CLOSE_S, self.watcher.note, (self, SLOW_CLOSE))
        notice.daemon = True
        notice.start()
        try:
            self.executor.close()
        except RunInterrupted:
            self.left_open = ("the nodes were not closed: a person did not wait for them",)
            self._stop_requests.forget_interruption()
        finally:
            notice.cancel()

    def _repeat_command(self, folder: RunFolder, cut: Cut) -> str:
        """The command that repeats a run whose cut the clock or a person chose; its graph is changed likewise."""
        if cut.reason not in ("time", "interrupt") or not cut.counts.train_iters or self.parent:
            return ""
        limits = replace(self.limits, time_s=None, train_iters=cut.counts.train_iters)
        folder.write_text("graph.yaml", expand(replace(self.graph, limits=limits)))
        graph = shlex.quote(str(folder.path / "graph.yaml"))
        return f"flowrl run {graph} --train-iters {cut.counts.train_iters}"

    def _fail(self, folder: RunFolder, error: BaseException) -> None:
        """Write to the folder what ended the run. An error of that must not hide the first one."""
        interrupted = self._stop_requests.is_interruption(error)
        if self.snapshots is not None and not interrupted:
            self.snapshots.end()
        files = None if interrupted else failure_files(self.graph, folder.path, error)
        self.hints += () if files is None else files.hints
        why = self.why_without_cut if interrupted else str(error)
        self.ended = self.result("interrupted" if interrupted else "failed", why)
        with contextlib.suppress(RunError):  # such as of a full disk, which may be the first error
            folder.write_json(SUMMARY_FILE, self.ended.as_dict())
            folder.end_tensorboard(success=interrupted)
            if files is not None:
                folder.write_text(ERROR_FILE, "".join(traceback.format_exception(error)))
                for name, text in files.texts.items():
                    folder.write_text(name, text)
                for name, tape in files.tapes.items():
                    folder.write_bytes(name, tape)

    def _close(self, folder: RunFolder) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(folder.close)
            if self.recording is not None:
                stack.callback(self.recording.close)
            if self.sites.hosts is not None:
                stack.callback(self.sites.hosts.close, "it has failed, or was stopped")
            if self.executor is not None:
                stack.callback(self.executor.close)
            self.watcher.end(self)
