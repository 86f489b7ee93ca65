"""Runs one graph with several seeds, each in a process and a folder of its own, and as many at once as cores allow.

DIR/seed0/, …    the run folder of each seed; `output.txt` in it is what the run's process printed
DIR/seeds.json   the results of all seeds and their statistics
DIR/plot.png     the learning curves
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.cluster.rendezvous import settled_rendezvous
from flowrl.core.errors import FlowError, UsageError, shortened_repr
from flowrl.core.json_text import parse_json
from flowrl.graph.model import Limits
from flowrl.graph.output_paths import refuse_shared_outputs
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import make_layout, resources_here
from flowrl.graph.site_shares import host_places, without_hosts
from flowrl.machine.child_process import ChildProcess, exit_text
from flowrl.machine.cores import usable_cores
from flowrl.runs.disk_errors import explain_disk_errors
from flowrl.runs.new_folder import create_seeds_folder
from flowrl.runs.plot import plot_runs
from flowrl.runs.result import RunResult, Status
from flowrl.runs.seed_display import SeedDisplay
from flowrl.runs.seed_process import SEED_MESSAGE, SeedNotBegun, SeedProgress
from flowrl.runs.seed_results import SeedResults
from flowrl.runs.stop_requests import handling_signals
from flowrl.runtime.sites.graph_transfer import graph_on_this_machine, require_importable

SEEDS_FILE, PLOT_FILE, OUTPUT_FILE = "seeds.json", "plot.png", "output.txt"
POLL_S = 0.25
SIGNAL_EVERY_S = 0.25
PASSED_ON = (signal.SIGINT, signal.SIGTERM)
EXIT_WITHIN_S = 10.0  # after its result, a run's process has only to end
NOTHING_DONE = SeedProgress(0, 0, 0, None, None, 0.0, 0.0, has_evaluated=False)
NOT_STARTED = "it was stopped before this seed began"


def read_seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """The seeds that a number of seeds stands for, which begin at 0, or those that are given one by one."""
    if isinstance(seeds, Iterable):
        found = tuple(seeds)
    else:
        found = tuple(range(seeds)) if isinstance(seeds, int) and seeds is not True else ()
    if not found or not all(type(seed) is int and 0 <= seed < 2**63 for seed in found):
        raise UsageError(
            f"seeds are {shortened_repr(seeds)}; expected how many, such as 5, or different whole numbers from 0, "
            "such as range(5)"
        )
    if len(set(found)) < len(found):
        raise UsageError(f"seeds are {shortened_repr(seeds)}; expected each seed once")
    return found


class SeedRuns:
    """The runs of a graph with several seeds, from making their folder to writing their summary."""

    def __init__(
        self,
        checked: CheckedGraph,
        seeds: Sequence[int],
        *,
        limits: Limits | None = None,
        out: str | Path | None = None,
        placement: str = "serial",
        at_once: int | None = None,
        hash_tokens: bool = False,
        recovers: bool = True,
        display: SeedDisplay | None = None,
        begun_s: float | None = None,
    ) -> None:
        """`at_once` is how many runs there may be at a time; by default, as many as have cores for their sites."""
        self.begun_s = time.perf_counter() if begun_s is None else begun_s
        given = checked.require_sound().graph
        self.graph = replace(given, limits=limits or given.limits)
        self._checked = checked
        self.placement = placement
        placed = without_hosts(resolve_placement(self.graph, placement))
        settled_rendezvous(host_places(self.graph, placed), None, ())
        require_importable(self.graph)
        if len(seeds) > 1:
            refuse_shared_outputs(self.graph, "--seeds")
        layout = make_layout(self.graph, placed, here=resources_here(self.graph, placed))
        needed = sum(needs.cores for needs in layout.needs.values())
        cores = max(len(layout.kinds), self.graph.most_torch_threads, needed)
        self.at_once = min(at_once or max(usable_cores() // cores, 1), len(seeds))
        self._hash_tokens, self._recovers = hash_tokens, recovers
        self._display = display or SeedDisplay()
        self.folder = create_seeds_folder(self.graph.name.replace("/", "_"), seeds, out)
        self.runs = [SeedRun(seed, self.folder / f"seed{seed}") for seed in seeds]
        self.interrupts = 0

    @property
    def wall_s(self) -> float:
        """Seconds since the command or the call began."""
        return time.perf_counter() - self.begun_s

    def run(self) -> SeedResults:
        """Run until all seeds have ended. A seed that fails does not end the others."""
        self._display.begin(self)
        try:
            with handling_signals(self._on_signal), DefaultSelector() as selector:
                self._run_all(selector)
        finally:
            for run in self.runs:
                run.kill()
            self._display.end(self)
        return self._finish()

    def _on_signal(self, name: str) -> None:
        self.interrupts += 1  # `_run_all` passes it on

    def _run_all(self, selector: DefaultSelector) -> None:
        waiting, told = list(self.runs), 0
        while waiting or selector.get_map():
            while waiting and len(selector.get_map()) < self.at_once:
                run = waiting.pop(0)
                if self.interrupts:
                    run.result = self._result_without_run(run, "interrupted", NOT_STARTED)
                else:
                    selector.register(run.start(self._config(run)), EVENT_READ, run)
            for key, _ in selector.select(POLL_S):
                self._read(key.data, selector)
            if told < self.interrupts:
                told = self.interrupts
                self._display.stopping(self)
            for key in selector.get_map().values():
                key.data.pass_on(self.interrupts)

    def _config(self, run: SeedRun) -> dict[str, Any]:
        graph = replace(self.graph, seed=run.seed)
        return {
            **graph_on_this_machine(replace(self._checked, graph=graph)),
            "files": [str(file) for file in graph.files],
            "out": str(run.folder),
            "placement": self.placement,
            "hash_tokens": self._hash_tokens,
            "recovers": self._recovers,
            "command": sys.argv,
        }

    def _read(self, run: SeedRun, selector: DefaultSelector) -> None:
        """Take in what the process of a seed has reported, and notice its end."""
        data = os.read(run.report, 1 << 16)
        for message in run.take_in(data):
            if isinstance(message, SeedProgress):
                run.progress = message
                if message.has_evaluated:
                    self._display.evaluated(self, run)
            elif isinstance(message, SeedNotBegun):
                run.result = self._result_without_run(run, message.status, message.why)
            else:
                run.result = message
        if not data:
            selector.unregister(run.report)
            how = run.end()
            if run.result is None:
                status: Status = "interrupted" if self.interrupts else "failed"
                run.result = self._result_without_run(run, status, f"its process {how}")
            self._display.ended(self, run)

    def _result_without_run(self, run: SeedRun, status: Status, why: str) -> RunResult:
        """The result of a seed whose process has reported none, with what it had done when it last reported."""
        done = run.progress or NOTHING_DONE
        return RunResult(
            graph=self.graph.name,
            run_dir=str(run.folder) if run.folder.exists() else "",
            placement=self.placement,
            status=status,
            deterministic=self._checked.deterministic,
            env_steps=done.env_steps,
            train_iters=done.train_iters,
            episodes=done.episodes,
            eval_return=done.eval_return,
            best_return=done.best_return,
            wall_s=round(done.wall_s, 3),
            training_s=round(done.training_s, 3),
            setup_s=round(done.wall_s - done.training_s, 3),
            env_steps_per_s=round(done.env_steps / done.training_s, 1) if done.training_s else 0.0,
            bottleneck="",
            digest="",
            seed=run.seed,
            why=why,
        )

    def _finish(self) -> SeedResults:
        results = SeedResults(
            graph=self.graph.name,
            run_dir=str(self.folder),
            at_once=self.at_once,
            wall_s=round(self.wall_s, 3),
            plot=self._plot(),
            runs=tuple(run.result for run in self.runs if run.result is not None),
        )
        with explain_disk_errors(self.folder):
            text = json.dumps(results.as_dict(), indent=2) + "\n"
            (self.folder / SEEDS_FILE).write_text(text, encoding="utf-8")
        return results

    def _plot(self) -> str:
        """Draw the learning curves, and return the path of the picture; without evaluations there is none."""
        path = self.folder / PLOT_FILE
        try:
            plot_runs([self.folder], path)
        except FlowError:  # the summary is worth more than the picture
            return ""
        return str(path)


class SeedRun:
    """The run of one seed: its process while there is one, and what it has reported."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.report = -1  # the descriptor from which its messages are read
        self.begun_s: float | None = None
        self.progress: SeedProgress | None = None
        self.result: RunResult | None = None
        self._process: ChildProcess | None = None
        self._unread = b""
        self._passed_on, self._passed_on_s = 0, -math.inf

    @property
    def is_active(self) -> bool:
        return self._process is not None

    def start(self, config: dict[str, Any]) -> int:
        """Start the process, and return the descriptor that it reports to."""
        with explain_disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            output = (self.folder / OUTPUT_FILE).open("wb")
        self.begun_s = time.perf_counter()
        self.report, theirs = os.pipe()
        with output:
            try:
                self._process = ChildProcess(
                    "flowrl.runs.seed_process",
                    {**config, "report": theirs},
                    output=output,
                    fds=(theirs,),
                )
            finally:
                os.close(theirs)
        return self.report

    def take_in(self, data: bytes) -> list[SeedProgress | SeedNotBegun | RunResult]:
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [SEED_MESSAGE.decode(parse_json(line)) for line in lines]

    def pass_on(self, interrupts: int) -> None:
        """Pass signals on to the process: the first asks for a cut, the second stops it at once, the third kills it.

        The second is another signal: of two equal ones the system keeps only one, if the process did not run in
        between. There is time between two of them. Otherwise the system may deliver the second to another thread of the
        process, which does not wake a node that waits in the main thread.
        """
        assert self._process is not None
        now_s = time.monotonic()
        if self._passed_on >= interrupts or now_s - self._passed_on_s < SIGNAL_EVERY_S:
            return
        self._passed_on, self._passed_on_s = self._passed_on + 1, now_s
        if self._passed_on > len(PASSED_ON):
            self._process.kill()
        elif self._process.exit_status() is None:
            os.kill(self._process.pid, PASSED_ON[self._passed_on - 1])

    def end(self) -> str:
        """Wait for the process, which has closed its report, and return how it ended."""
        assert self._process is not None
        status = self._process.wait(time.monotonic() + EXIT_WITHIN_S)
        self.kill()
        return "did not end, and was killed" if status is None else exit_text(status)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
            os.close(self.report)
