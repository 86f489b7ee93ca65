"""A run: executes a sound graph up to its cut, and records everything about it in a folder."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.checks.check import CheckedGraph
from flowrl.cluster.rendezvous import Rendezvous, check_rendezvous
from flowrl.core.context import Record, instance_key
from flowrl.core.errors import NodeError, RunError, UsageError, attached_files
from flowrl.core.project_modules import importable_modules
from flowrl.core.state import Count
from flowrl.graph.expand import expand, parameter_lines
from flowrl.graph.model import Graph, Limits
from flowrl.graph.param_reader import written_params
from flowrl.graph.placement import MAIN, host_places, resolve_placement
from flowrl.graph.settings import Setting, graph_settings
from flowrl.graph.site_layout import make_layout
from flowrl.graph.yaml_text import flow_text
from flowrl.machine.crash_tracebacks import crash_tracebacks
from flowrl.machine.environment import environment, library_versions
from flowrl.machine.numerics import reset_numerics, settled_numerics
from flowrl.render.dot import graph_dot_text
from flowrl.runs.display import Watcher
from flowrl.runs.folder import (
    ENVIRONMENT_FILE,
    ERROR_FILE,
    SUMMARY_FILE,
    RunFolder,
    create_run_folder,
)
from flowrl.runs.peek import PeekAnswers
from flowrl.runs.query_server import answering_queries
from flowrl.runs.recording import Recording, failed_firing_tape
from flowrl.runs.recovery import Recovery
from flowrl.runs.result import RunResult, Status
from flowrl.runs.run_snapshots import (
    ContinuedRun,
    RunSnapshots,
    WrittenSnapshot,
    known_snapshot_rounds,
    unsavable_reason,
)
from flowrl.runs.run_status import status_of, timings_row
from flowrl.runs.snapshot_files import read_newest_snapshot, snapshot_folders
from flowrl.runs.summary import EvaluationReturns, summary_of
from flowrl.runtime.executor import Cut, Executor
from flowrl.runtime.interruptions import RunInterrupted
from flowrl.runtime.records import RecordSource
from flowrl.runtime.serial_executor import SerialExecutor
from flowrl.runtime.sites.coordinator import Coordinator
from flowrl.runtime.sites.graph_transfer import graph_to_send, require_importable
from flowrl.runtime.sites.launched_sites import SiteFailed, SiteLost
from flowrl.runtime.snapshot_schedule import SnapshotSchedule
from flowrl.runtime.status import RUN_STATUS, NodeStats

if TYPE_CHECKING:
    from flowrl.cluster.joined_hosts import JoinedHosts

SLOW_CLOSE_S = 5.0
POLL_S = 0.05
PRECAUTION_EVERY_S = 300.0  # between the snapshots of a run whose graph does not say how often
SLOW_CLOSE = "the nodes take long to close; Ctrl-C leaves them as they are and keeps the result"
NO_SNAPSHOTS = (
    "the run could not go on, as it had no snapshot yet; with `snapshots: {every_s: 60}` in the graph it has one each "
    "minute, and begins anew before the first"
)
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
        self._placed = resolve_placement(self.graph, placement)
        # Until hosts have joined, each place that is a host stands for one host.
        self.layout = make_layout(self.graph, self._placed)
        self.rendezvous = rendezvous
        self.hosts: JoinedHosts | None = None
        self._places = host_places(self.graph, self._placed)
        check_rendezvous(self._places, rendezvous)
        if "process" in self.layout.kinds.values():  # on this machine or on a host
            require_importable(self.graph)
        self.out = out
        self.continued, self._saves_at_end = continued, saves_at_end
        self._newest = continued.snapshot if continued else None  # the executor begins from it
        self._recovers = recovers
        self.recording: Recording | None = (
            None  # to be set before `run`; such a run does not recover
        )
        self.recovery = Recovery()
        self.is_recovering = False
        self._first_began_s: float | None = None
        self.snapshots: RunSnapshots | None = None
        self._unsavable = "it has not begun"  # why no snapshot can be saved
        self.hash_tokens = hash_tokens
        self.watcher = watcher or Watcher()
        self.folder: RunFolder | None = None
        self.executor: Executor | None = None
        self.making = ""  # the instance that is being made in this thread
        self._returns = EvaluationReturns(next(iter(self.graph.nodes_of_role("evaluator")), ""))
        self.ended: RunResult | None = None
        self._interrupts = 0
        self._is_uninterruptible = self._is_interrupted = False
        self._is_closing = False
        self.left_open: tuple[str, ...] = ()
        self.hints: tuple[str, ...] = ()
        self._peek_answers = PeekAnswers()
        self.is_stopping = False
        self._thread = threading.current_thread()

    @property
    def wall_s(self) -> float:
        """Seconds since the command or the call began."""
        return time.perf_counter() - self.begun_s

    @property
    def setup_s(self) -> float:
        """Seconds before the first firing: imports, checks, and making the nodes."""
        began_s = self._training_began_s
        return (time.perf_counter() if began_s is None else began_s) - self.begun_s

    @property
    def training_s(self) -> float:
        """Seconds since the first firing began, until now or until the cut; with the time that recoveries took."""
        began_s = self._training_began_s
        if began_s is None:
            return 0.0
        ended_s = self.executor.ended_s if self.executor else None
        return (ended_s or time.perf_counter()) - began_s

    @property
    def _training_began_s(self) -> float | None:
        if self._first_began_s is not None:
            return self._first_began_s
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
        return self.executor.counts if self.executor else Count()

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
            if self._is_interruption(error):
                raise KeyboardInterrupt from error
            raise

    def _run(self) -> RunResult:
        self._thread = threading.current_thread()
        with (
            handling_signals(self._on_signal),
            settled_numerics(self.graph.torch_threads),
            importable_modules(self.graph.folders),
            crash_tracebacks(),
        ):
            folder = self.folder = self._open_folder()
            warn = partial(self.watcher.note, self)
            with answering_queries(self.graph.name, self.placement, folder.path, self.answer, warn):
                try:
                    with self._interrupted_afterwards():
                        self.watcher.begin(self)
                    self._write_initial_files(folder)
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
        self._rewind(folder, self.continued.mark)
        return folder

    def _mark(self) -> dict[str, Any]:
        """How far the run's records have been written, for the snapshot of this moment."""
        assert self.folder is not None
        returns = [self._returns.last, self._returns.best]
        return {"files": self.folder.mark(), "returns": returns}

    def _make_snapshots(self, folder: RunFolder) -> None:
        """Let executors save snapshots, if they can."""
        settings = self.graph.snapshots
        is_single_site = list(self.layout.kinds) == [MAIN]
        self._unsavable = unsavable_reason(self.checked, is_single_site)
        if self._unsavable:
            if settings.is_regular:
                hint = "leave `snapshots` out, or take `--placement serial`"
                raise UsageError(f"snapshots: {self._unsavable}; {hint}")
            return
        are_precautions = not (settings.is_regular or settings.is_off)
        every_s = PRECAUTION_EVERY_S if are_precautions else settings.every_s
        saves_at_end = settings.is_regular or self._saves_at_end
        known = known_snapshot_rounds(self.checked, self.limits) if saves_at_end else ()
        self.snapshots = RunSnapshots(
            folder.absolute_path,
            SnapshotSchedule(every_s, settings.every_rounds, known),
            1 if are_precautions else settings.keep,
            {
                "graph": self.graph.name,
                "seed": self.seed,
                "limits": asdict(self.limits),
                "resolved": expand(self.graph),
                "parent": self.parent,
                "libraries": library_versions(),
            },
            self._mark,
            lambda text: self.watcher.note(self, text),
            are_precautions,
        )
        if self.continued is not None and not self.is_fork:
            newest = self.continued
            self.snapshots.newest = WrittenSnapshot(newest.snapshot.rounds, newest.state_digest)

    def answer(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a query. The thread of the query server calls this."""
        if query.get("ask") == "status":
            answer: dict[str, Any] = RUN_STATUS.encode(status_of(self))
            return answer
        if query.get("ask") == "stop":
            self.stop(now=bool(query.get("now")))
            return {"stopping": True}
        if query.get("ask") == "snapshot":
            return self._answer_about_snapshots(bool(query.get("request")))
        if query.get("ask") == "peek":
            return self._peek_answers.answer(self.executor, query)
        raise UsageError(f"unknown query {query.get('ask')!r}; known: status, stop, snapshot, peek")

    def _answer_about_snapshots(self, is_request: bool) -> dict[str, Any]:
        """Say after how many rounds the newest snapshot was saved; ask for another one if this is a request."""
        snapshots = self.snapshots
        if snapshots is None:
            raise UsageError(f"the run cannot save a snapshot: {self._unsavable}")
        if is_request:
            snapshots.schedule.request()
        newest = snapshots.newest.rounds if snapshots.newest else None
        return {"newest": newest, "problems": list(snapshots.problems)}

    def stop(self, now: bool = False) -> None:
        """Ask for a cut, as Ctrl-C does, or end the run at once, as a second Ctrl-C does. Any thread may call this."""
        if not now:
            self.is_stopping = True
            if self.executor is not None:  # otherwise `_execute` does this
                self.executor.stop("interrupt", "flowrl stop")
            self.watcher.stopping(self)
        elif self._thread is threading.main_thread():
            self._interrupts = max(self._interrupts, 1)
            signal.pthread_kill(self._thread.ident or 0, signal.SIGINT)
        else:
            raise UsageError(
                "it runs in a thread of another program, and only that program can end it at once"
            )

    def record(self, source: RecordSource, record: Record) -> None:
        """Write a record of the executor to the folder, and show it."""
        assert self.folder is not None
        with self._interrupted_afterwards():
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

    # the parts of a run

    def _write_initial_files(self, folder: RunFolder) -> None:
        """Write what is known before a node is made: the graph, the environment, and each node's parameters."""
        policy = {k: v for k, v in self.settings.items() if k.startswith("policy.")}
        folder.facts = {"libraries": library_versions(), "settings": policy}
        folder.write_text("graph.yaml", expand(self.graph))
        folder.write_text("graph.dot", graph_dot_text(self.checked))
        folder.write_json(ENVIRONMENT_FILE, self._environment())
        folder.write_text("params.yaml", params_text(self.graph))
        if self.continued is not None and not self.is_fork:
            folder.open_tensorboard(self.settings, self.continued.snapshot.counts.env_steps)
            return
        for spec in self.graph.nodes.values():
            for replica in range(spec.replicas):
                folder.create_log(instance_key(spec.name, replica))
        folder.open_tensorboard(self.settings)

    def _environment(self) -> dict[str, Any]:
        """This machine and its libraries, and how the run was started."""
        files = self.graph.files
        project = files[-1].parent if files else Path()
        resolved = {
            f"{node}.{name}": value
            for node, facts in self.checked.facts.items()
            for name, value in facts.resolved.items()
        }
        how = {"seed": self.seed, "placement": self.placement, "resolved": resolved}
        if self.parent is not None:
            how["parent"] = self.parent
        return {**environment(project), **how}

    def _execute_and_recover(self, folder: RunFolder) -> Cut:
        """Execute the graph; after the loss of a site go on from the newest snapshot, if that is possible."""
        self._make_snapshots(folder)
        if self.rendezvous is not None:
            self._join_hosts(self.rendezvous)
            self._place_on_hosts()
        beginning = self._mark()
        while True:
            try:
                return self._execute(folder)
            except SiteLost as loss:
                if not self._can_recover_from(loss) or not self._go_back(folder, beginning, loss):
                    raise

    def _can_recover_from(self, loss: SiteLost) -> bool:
        if isinstance(loss, SiteFailed) or self.is_stopping or self._training_began_s is None:
            return False  # it would happen again, or nothing is lost
        if not self._recovers or self.recording is not None or self.snapshots is None:
            return False
        if not self.graph.snapshots.is_regular and self.snapshots.newest is None:
            self.hints = (NO_SNAPSHOTS,)
            return False
        return True

    def _go_back(self, folder: RunFolder, beginning: Mapping[str, Any], loss: SiteLost) -> bool:
        """Bring the run back to its newest snapshot. Return whether it can go on from there."""
        assert self.executor is not None
        assert self.snapshots is not None
        self.is_recovering = True
        self._first_began_s = self._training_began_s
        self.executor.close()
        if not self.snapshots.end():
            return False
        self._newest = self.continued.snapshot if self.continued else None
        mark = beginning
        if snapshot_folders(folder.absolute_path):
            stored = read_newest_snapshot(folder.absolute_path)
            self._newest, mark = stored.snapshot, stored.snapshot.mark
        rounds = self._newest.rounds if self._newest else 0
        wait_s = self.recovery.wait_before_next(rounds)
        if wait_s is None:
            return False
        self.watcher.note(self, self.recovery.add(loss, rounds))
        self._wait_unless_stopping(wait_s)
        if self.hosts is not None:
            self.hosts.end_sites()
            self._place_on_hosts()
        self._rewind(folder, mark)
        folder.replace_in_tensorboard(self._newest.counts.env_steps if self._newest else 0)
        self.is_recovering = False
        return True

    def _wait_unless_stopping(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and not self.is_stopping:
            time.sleep(POLL_S)

    def _rewind(self, folder: RunFolder, mark: Mapping[str, Any]) -> None:
        """Continue the run's files from a mark."""
        folder.continue_after(mark["files"])
        self._returns.last, self._returns.best = mark["returns"]

    def _execute(self, folder: RunFolder) -> Cut:
        if list(self.layout.kinds) == [MAIN]:
            self.executor = SerialExecutor(
                self.checked, self, self.seed, self.limits, self._set_making, self._continues
            )
            # Modules that the nodes imported may have changed the numerics.
            reset_numerics(self.graph.torch_threads)
        else:
            self.executor = Coordinator(
                self.checked,
                self,
                self.layout,
                self.seed,
                self._limits_left(),
                self.hosts,
                lambda text: self.watcher.note(self, text),
                self._continues,
            )
        self.executor.snapshots = self.snapshots
        if self._newest is not None:
            self.executor.continue_from(self._newest)
        if self.recording is not None:
            self.recording.begin(folder.absolute_path, self.graph, self._newest)
            self.executor.hash_tokens(self.recording.write, self.recording.inputs)
        elif self.hash_tokens:
            self.executor.hash_tokens(folder.open_token_file(self.graph))
        if self.is_stopping:
            self.executor.stop("interrupt", "flowrl stop")
        return self.executor.run()

    @property
    def _continues(self) -> bool:
        """Whether an earlier part of the run, in the same folder, may have made files that nodes find."""
        return self.is_resumed or self._first_began_s is not None

    def _limits_left(self) -> Limits:
        """The limits of the run. `time_s` counts what recoveries took, and what they took back."""
        if self.limits.time_s is None or self._first_began_s is None:
            return self.limits
        return replace(self.limits, time_s=max(self.limits.time_s - self.training_s, 0.0))

    def _set_making(self, instance: str) -> None:
        self.making = instance

    def _join_hosts(self, rendezvous: Rendezvous) -> None:
        """Let hosts join the run."""
        from flowrl.cluster.joined_hosts import JoinedHosts  # imported late, as it loads ZeroMQ

        sent = graph_to_send(self.checked)
        self.hosts = JoinedHosts(rendezvous, sent, lambda text: self.watcher.note(self, text))

    def _place_on_hosts(self) -> None:
        """Wait for hosts, and decide which site is on which host."""
        assert self.folder is not None
        assert self.hosts is not None
        self.watcher.note(self, f"waiting for hosts: flowrl host --join {self.hosts.join_address}")
        self.layout = make_layout(self.graph, self._placed, self.hosts.wait(self._places))
        self.folder.write_json(
            ENVIRONMENT_FILE, {**self._environment(), "hosts": self.hosts.facts_by_host()}
        )

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
        if self.hosts is not None:
            self.hosts.close(cut.why)
        status = STATUS_OF_REASON.get(cut.reason, "finished")
        result = self.result(status, cut.why, digest, self._repeat_command(folder, cut))
        folder.write_json(SUMMARY_FILE, result.as_dict())
        folder.end_tensorboard(success=True)
        self.ended = result
        return result

    def _close_nodes(self) -> None:
        """Close the nodes. The result is known, so Ctrl-C leaves a node that does not close, and keeps the result."""
        assert self.executor is not None
        self._is_closing = True
        notice = threading.Timer(SLOW_CLOSE_S, self.watcher.note, (self, SLOW_CLOSE))
        notice.daemon = True
        notice.start()
        try:
            self.executor.close()
        except RunInterrupted:
            self.left_open = ("the nodes were not closed: a person did not wait for them",)
            self._is_interrupted = False
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
        interrupted = self._is_interruption(error)
        if self.snapshots is not None and not interrupted:
            self.snapshots.end()
        tape_name, tape = "", b""
        if isinstance(error, NodeError) and error.failed_firing:
            with contextlib.suppress(ValueError):  # another machine has sent it
                tape_name, tape = failed_firing_tape(self.graph, error.failed_firing)
                path = shlex.quote(str(folder.path / tape_name))
                self.hints += (f"`flowrl replay {path}` fires '{error.node}' again as it failed",)
        why = "stopped at once" if interrupted else str(error)
        self.ended = self.result("interrupted" if interrupted else "failed", why)
        with contextlib.suppress(
            RunError
        ):  # a full disk, for example, which may be the first error
            folder.write_json(SUMMARY_FILE, self.ended.as_dict())
            folder.end_tensorboard(success=interrupted)
            if not interrupted:
                folder.write_text(ERROR_FILE, "".join(traceback.format_exception(error)))
                for name, text in attached_files(error).items():
                    folder.write_text(Path(name).name, text)
                if tape:
                    folder.write_bytes(tape_name, tape)

    def _close(self, folder: RunFolder) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(folder.close)
            if self.recording is not None:
                stack.callback(self.recording.close)
            if self.hosts is not None:
                stack.callback(self.hosts.close, "it has failed, or was stopped")
            if self.executor is not None:
                stack.callback(self.executor.close)
            self.watcher.end(self)

    def _on_signal(self, name: str) -> None:
        """The first Ctrl-C (or SIGTERM) asks for a cut, the second stops at once."""
        self._interrupts += 1
        if self._interrupts > 1 or self.executor is None or self._is_closing:
            may_wait = self._is_uninterruptible and not self._is_interrupted
            self._is_interrupted = True
            if may_wait:
                return
            raise RunInterrupted
        self.is_stopping = True
        self.executor.stop("interrupt", name)
        self.watcher.stopping(self)

    def _is_interruption(self, error: BaseException) -> bool:
        """Whether the run was stopped at once. At a bad moment, this makes Python's locks raise errors of their own."""
        return isinstance(error, RunInterrupted) or self._is_interrupted

    @contextmanager
    def _interrupted_afterwards(self) -> Iterator[None]:
        """Let what stops the run at once wait until this is done, so that records are whole and locks are released.

        If this blocks, such as on a full pipe, the next signal does not wait.
        """
        self._is_uninterruptible = True
        try:
            yield
        finally:
            self._is_uninterruptible = False
        if self._is_interrupted:
            raise RunInterrupted


def params_text(graph: Graph) -> str:
    """The type and the parameters of each node as YAML, one in a line."""
    lines = []
    for spec in graph.nodes.values():
        lines.append(f"{flow_text(spec.name)}:")
        for name, value in {"type": spec.type, **written_params(spec.config)}.items():
            lines += parameter_lines(name, value, depth=1)
    return "\n".join(lines) + "\n"


@contextmanager
def handling_signals(on_signal: Callable[[str], None]) -> Iterator[None]:
    """Call `on_signal` with the name of each SIGINT and SIGTERM. Python delivers signals to the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    has_ended = False

    def handle(number: int, frame: Any) -> None:
        if not has_ended:  # otherwise an exception would leave a handler in its place
            on_signal(signal.Signals(number).name)

    before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        has_ended = True
        for number, handler in before.items():
            signal.signal(number, handler)
