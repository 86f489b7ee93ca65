"""The process of one seed: executes a run as `flowrl run --seed N` does, and reports to the process that started it.

Its configuration is that of `graph_transfer.read_graph`, with the arguments of `Run`, the `files` that the graph was
read from, the `command` that was given to the starting process, and `report`, a descriptor to which it writes messages
as lines of JSON (`SeedMessage`).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowrl.core.plain_data import DataCodec
from flowrl.core.records import MetricsRecord, Record
from flowrl.machine.child_process import begin_child
from flowrl.machine.process_exit import exit_now
from flowrl.runs.result import RunResult, Status
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource
from flowrl.runtime.sites.graph_transfer import read_graph

PROGRESS_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class SeedProgress:
    """What the run of a seed has done so far."""

    env_steps: int
    train_iters: int
    episodes: int
    eval_return: float | None
    best_return: float | None
    wall_s: float
    training_s: float
    has_evaluated: bool  # an evaluation ended just now


@dataclass(frozen=True, slots=True)
class SeedNotBegun:
    """There is no run, because its graph could not be read again, or because of a signal before that."""

    status: Status
    why: str


SeedMessage = SeedProgress | SeedNotBegun | RunResult
SEED_MESSAGE: DataCodec[SeedMessage] = DataCodec(SeedMessage)


class SeedReporter(Watcher):
    """Reports evaluations, and some times a second the progress."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._file = os.fdopen(fd, "w", encoding="utf-8")
        self._reported_s = 0.0

    def send(self, message: SeedMessage) -> None:
        self._file.write(json.dumps(SEED_MESSAGE.encode(message)) + "\n")
        self._file.flush()

    def note(self, run: Run, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        has_evaluated = isinstance(record, MetricsRecord) and source.role == "evaluator"
        now_s = time.perf_counter()
        if has_evaluated or now_s - self._reported_s >= PROGRESS_EVERY_S:
            self._reported_s = now_s
            total = source.total if has_evaluated else run.counts
            progress = SeedProgress(
                env_steps=total.env_steps,
                train_iters=total.train_iters,
                episodes=total.episodes,
                eval_return=run.eval_return,
                best_return=run.best_return,
                wall_s=run.wall_s,
                training_s=run.training_s,
                has_evaluated=has_evaluated,
            )
            self.send(progress)


def main() -> None:
    begun_s = time.perf_counter()
    config = begin_child()
    for number in (signal.SIGINT, signal.SIGTERM):  # the starting process sends them
        signal.signal(number, signal.default_int_handler)
    sys.argv = config["command"]
    reporter = SeedReporter(config["report"])
    reporter.send(run_seed(config, reporter, begun_s))
    exit_now()


def run_seed(config: dict[str, Any], reporter: SeedReporter, begun_s: float) -> SeedMessage:
    """Execute the run. Its error is printed, and is also in its result."""
    run = None
    status: Status = "failed"
    try:
        checked = read_graph(config)
        files = tuple(map(Path, config["files"]))  # the run's folder tells their git commit
        run = Run(
            replace(checked, graph=replace(checked.graph, files=files)),
            out=config["out"],
            placement=config["placement"],
            hash_tokens=config["hash_tokens"],
            recovers=config["recovers"],
            watcher=reporter,
            begun_s=begun_s,
        )
        return run.run()
    except KeyboardInterrupt:
        status, why = "interrupted", "stopped at once"
    except Exception as error:
        traceback.print_exc()
        why = str(error)
    if run is None:
        return SeedNotBegun(status, why)
    return run.ended or run.result(status, why)


if __name__ == "__main__":
    main()
