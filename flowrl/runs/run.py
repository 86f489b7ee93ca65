"""A run: a sound graph, executed up to its cut, with a folder that tells everything about it."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.checks.check import CheckedGraph
from flowrl.cluster.rendezvous import Rendezvous, check_rendezvous
from flowrl.core.context import Record
from flowrl.core.errors import RunError, UsageError, attached_files
from flowrl.core.state import Count
from flowrl.graph.expand import expand
from flowrl.graph.model import Limits
from flowrl.graph.placement import MAIN, host_places, resolve_placement
from flowrl.graph.site_layout import make_layout
from flowrl.machine.numerics import reset_numerics
from flowrl.runs.beginning import ENVIRONMENT, environment_of, write_beginning
from flowrl.runs.folder import RunFolder, create_run_folder
from flowrl.runs.query_server import controlled
from flowrl.runs.result import RunResult, Status, finite
from flowrl.runs.result_text import bottleneck_sentence
from flowrl.runs.returns import Returns
from flowrl.runs.run_status import look_at
from flowrl.runs.signals import signals_to
from flowrl.runs.timings import timings_of
from flowrl.runs.watcher import Watcher
from flowrl.runtime.control.coordinator import Coordinator
from flowrl.runtime.executor import Cut, Executor, InstanceTimes
from flowrl.runtime.processes.graph_transfer import graph_to_send
from flowrl.runtime.records import RecordSource
from flowrl.runtime.serial_executor import SerialExecutor

if TYPE_CHECKING:
    from flowrl.cluster.joined_hosts import JoinedHosts

ENDS: Mapping[str, Status] = {"verdict": "solved", "interrupt": "interrupted"}


class Run:
    """One run, from making its folder and nodes to writing its summary."""

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
    ) -> None:
        self.placement = placement
        given = checked.require_sound().graph
        self.seed = given.seed if seed is None else seed
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"the seed is {self.seed}; expected a whole number from 0 to 2^63 - 1")
        self.limits = limits or given.limits
        self.graph = replace(given, seed=self.seed, limits=self.limits)
        self.checked = replace(checked, graph=self.graph)
        self._placed = resolve_placement(self.graph, placement)
        self.layout = make_layout(self.graph, self._placed)  # as if each host were there
        self.rendezvous = rendezvous
        self.hosts: JoinedHosts | None = None
        self._places = host_places(self.graph, self._placed)
        check_rendezvous(self._places, rendezvous)
        self.out = out
        self.hash_tokens = hash_tokens
        self.watcher = watcher or Watcher()
        self.folder: RunFolder | None = None
        self.executor: Executor | None = None
        self.begun_s = time.perf_counter()
        self._returns = Returns(next(iter(self.graph.nodes_of_role("evaluator")), ""))
        self.ended: RunResult | None = None
        self._interrupts = 0
        self.stops = False  # somebody asked it to
        self._thread = threading.current_thread()

    @property
    def wall_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.begun_s

    @property
    def firing_s(self) -> float:
        """Seconds in which nodes fire: since they were made, until the cut."""
        executor = self.executor
        if executor is None or executor.began_s is None:
            return 0.0
        return (executor.ended_s or time.perf_counter()) - executor.began_s

    @property
    def eval_return(self) -> float | None:
        """The return that was evaluated last."""
        return self._returns.last

    @property
    def best_return(self) -> float | None:
        """That of the best checkpoint."""
        return self._returns.best

    @property
    def counts(self) -> Count:
        """What has been done so far."""
        return self.executor.counts if self.executor else Count()

    def instance_times(self) -> list[InstanceTimes]:
        """Where the time of each instance went."""
        return self.executor.instance_times() if self.executor else []

    def timings(self) -> dict[str, Any]:
        """Where time went so far, as data."""
        idle_s = self.executor.idle_s() if self.executor else {}
        return timings_of(self.instance_times(), idle_s, self.wall_s)

    def run(self) -> RunResult:
        """Run until the cut; raises what stopped it, after the folder says so too."""
        self._thread = threading.current_thread()
        with signals_to(self._signalled):
            folder = self.folder = RunFolder(
                create_run_folder(self.graph.name.replace("/", "_"), self.out)
            )
            warn = partial(self.watcher.note, self)
            with controlled(self.graph.name, self.placement, folder.path, self.answer, warn):
                try:
                    self.watcher.begin(self)
                    write_beginning(folder, self.checked, self.seed, self.placement)
                    return self._finish(folder, self._execute())
                except BaseException as error:
                    self._fail(folder, error)
                    raise
                finally:
                    self._close(folder)

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """What somebody asks from outside; called by another thread."""
        if question.get("ask") == "look":
            return look_at(self)
        if question.get("ask") == "stop":
            self.stop(now=bool(question.get("now")))
            return {"stops": True}
        raise UsageError(f"unknown question {question.get('ask')!r}; known: look, stop")

    def stop(self, now: bool = False) -> None:
        """Like Ctrl-C, or twice that; from any thread."""
        if not now:
            self.stops = True
            if self.executor is not None:  # else as soon as it is made
                self.executor.stop("interrupt", "flowrl stop")
            self.watcher.stopping(self)
        elif self._thread is threading.main_thread():
            self._interrupts = max(self._interrupts, 1)
            signal.pthread_kill(self._thread.ident or 0, signal.SIGINT)
        else:
            raise UsageError(
                "it runs in a thread of another program, which alone can end it at once"
            )

    def record(self, source: RecordSource, record: Record) -> None:
        """The engine's sink: write it down, remember what the summary tells, show it."""
        assert self.folder is not None
        record = self._returns.heard(source, record)
        self.folder.write_record(source, record)
        self.folder.append_timings(self.wall_s, self.timings)
        self.watcher.event(self, source, record)

    def result(self, status: Status, why: str, digest: str = "", repeat: str = "") -> RunResult:
        """The summary as things are now."""
        wall_s, counts = self.wall_s, self.counts
        return RunResult(
            graph=self.graph.name,
            run_dir=str(self.folder.path) if self.folder else "",
            placement=self.placement,
            status=status,
            deterministic=self.checked.deterministic,
            env_steps=counts.env_steps,
            train_iters=counts.train_iters,
            episodes=counts.episodes,
            eval_return=finite(self.eval_return),
            best_return=finite(self.best_return),
            wall_s=round(wall_s, 3),
            env_steps_per_s=round(counts.env_steps / wall_s, 1),
            bottleneck=bottleneck_sentence(self.instance_times(), self.firing_s),
            digest=digest,
            seed=self.seed,
            why=why,
            repeat=repeat,
            happened=tuple(self._happened()),
            warnings=tuple(self.hosts.warnings()) if self.hosts else (),
        )

    def _happened(self) -> list[str]:
        return self.executor.irregularity_lines() if self.executor else []

    # the parts of a run

    def _execute(self) -> Cut:
        reset_numerics(self.graph.torch_threads)
        if self.rendezvous is not None:
            self._meet(self.rendezvous)
        if list(self.layout.kinds) == [MAIN]:
            self.executor = SerialExecutor(self.checked, self, self.seed, self.limits)
            reset_numerics(self.graph.torch_threads)  # and of what its nodes have loaded
        else:
            self.executor = Coordinator(
                self.checked, self, self.layout, self.seed, self.limits, self.hosts
            )
        if self.hash_tokens:
            assert self.folder is not None
            self.executor.hash_tokens(self.folder.open_token_file(self.graph))
        if self.stops:
            self.executor.stop("interrupt", "flowrl stop")
        return self.executor.run()

    def _meet(self, rendezvous: Rendezvous) -> None:
        """Wait for hosts; then it is known what is where."""
        from flowrl.cluster.joined_hosts import JoinedHosts  # only now: it loads ZeroMQ

        assert self.folder is not None
        sent = graph_to_send(self.checked)
        self.hosts = JoinedHosts(rendezvous, sent, lambda text: self.watcher.note(self, text))
        self.watcher.note(self, f"waiting for hosts: flowrl host --join {self.hosts.shown}")
        self.layout = make_layout(self.graph, self._placed, self.hosts.wait(self._places))
        known = environment_of(self.checked, self.seed, self.placement)
        self.folder.write_json(ENVIRONMENT, {**known, "hosts": self.hosts.about()})

    def _finish(self, folder: RunFolder, cut: Cut) -> RunResult:
        assert self.executor is not None
        weights, digest = self.executor.weights(), self.executor.digest()
        if weights:
            folder.write_checkpoint("last", weights, {"why": cut.why})
        folder.append_timings(self.wall_s, self.timings, now=True)
        self.executor.close()  # before the summary, which tells what would not close
        if self.hosts is not None:
            self.hosts.close(cut.why)
        status = ENDS.get(cut.reason, "finished")
        result = self.result(status, cut.why, digest, self._repeat(folder, cut))
        folder.write_json("summary.json", result.as_dict())
        self.ended = result
        return result

    def _repeat(self, folder: RunFolder, cut: Cut) -> str:
        """Where the clock or a person chose the cut: the words that end a run there again.

        The run's own graph says it too.
        """
        if cut.reason not in ("time", "interrupt") or not cut.counts.train_iters:
            return ""
        limits = replace(self.limits, time_s=None, train_iters=cut.counts.train_iters)
        folder.write_text("graph.yaml", expand(replace(self.graph, limits=limits)))
        graph = shlex.quote(str(folder.path / "graph.yaml"))
        return f"flowrl run {graph} --train-iters {cut.counts.train_iters}"

    def _fail(self, folder: RunFolder, error: BaseException) -> None:
        """The folder tells what stopped the run; where it cannot, the first cause goes on."""
        stopped = isinstance(error, KeyboardInterrupt)
        why = "stopped at once" if stopped else str(error)
        self.ended = self.result("interrupted" if stopped else "failed", why)
        with contextlib.suppress(RunError):  # a full disk, say, which may be the first cause
            folder.write_json("summary.json", self.ended.as_dict())
            if not stopped:
                folder.write_text("error.txt", "".join(traceback.format_exception(error)))
                for name, text in attached_files(error).items():
                    folder.write_text(Path(name).name, text)

    def _close(self, folder: RunFolder) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(folder.close)
            if self.hosts is not None:
                stack.callback(self.hosts.close, "it has failed, or was stopped")
            if self.executor is not None:
                stack.callback(self.executor.close)
            self.watcher.end(self)

    def _signalled(self, name: str) -> None:
        """The first Ctrl-C (or SIGTERM) asks for a cut, the second stops at once."""
        self._interrupts += 1
        if self._interrupts > 1 or self.executor is None:
            raise KeyboardInterrupt
        self.stops = True
        self.executor.stop("interrupt", name)
        self.watcher.stopping(self)
