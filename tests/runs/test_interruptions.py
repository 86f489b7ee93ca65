"""A run that is stopped at once, by a second Ctrl-C, at a bad moment."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.core.records import Record
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from flowrl.runs.stop_requests import handling_signals
from flowrl.runs.watcher import Watcher
from flowrl.runtime.records import RecordSource
from tests.toys.toy_runs import toy_graph


def press_ctrl_c(times: int) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


class LosesAnInterruption(Node):
    """Replaces the interruption by another error, as a condition that has released its lock does, or ignores it."""

    data = In("samples")

    class Config(Config):
        ignores: bool = param(False, "ignore the interruption")

    def fire(self, data: Batch) -> None:
        self.ctx.metrics({"fired": 1})
        try:
            press_ctrl_c(2)
        except BaseException:
            if not self.config.ignores:
                raise RuntimeError("release unlocked lock") from None


class Interrupter(Watcher):
    """Presses Ctrl-C when the run begins or shows a record, and counts how often it could go on."""

    def __init__(self, signals: int, at: str) -> None:
        self.signals, self.at, self.completed = signals, at, 0

    def begin(self, run: Run) -> None:
        if self.at == "begin":
            self._send()

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        if self.at == "record":
            self._send()

    def _send(self) -> None:
        press_ctrl_c(self.signals)
        self.completed += 1


def run_interrupted(out: Path, watcher: Watcher | None = None, **nodes: Any) -> str:
    """Run until the run is stopped at once, and return its status."""
    nodes = {"c": "Source", "l": "Learner", "e": "Evaluator", **nodes}
    edges = ["c -> l", {"l.weights -> e": {"every": 1}}, *(["c -> a"] if "a" in nodes else [])]
    graph = check(load_data(toy_graph(nodes, edges)))
    run = Run(graph, out=out, limits=Limits(train_iters=3), watcher=watcher)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert run.ended is not None
    return f"{run.ended.status}: {run.ended.why}"


@pytest.mark.parametrize(("signals", "at"), [(1, "begin"), (2, "record")])
def test_it_stops_when_the_record_is_written_and_shown(
    signals: int, at: str, tmp_path: Path
) -> None:
    watcher = Interrupter(signals, at)
    how = "at once" if at == "record" else "before the first firing"
    assert run_interrupted(tmp_path, watcher) == f"interrupted: stopped {how}"
    assert watcher.completed == 1


def test_one_more_signal_stops_a_record_that_does_not_end(tmp_path: Path) -> None:
    watcher = Interrupter(3, "record")
    assert run_interrupted(tmp_path, watcher) == "interrupted: stopped at once"
    assert watcher.completed == 0


@pytest.mark.parametrize("ignores", [False, True])
def test_an_interruption_that_a_node_replaces_or_ignores_stops_the_run(
    ignores: bool, tmp_path: Path
) -> None:
    node = {"type": f"{__name__}:LosesAnInterruption", "ignores": ignores}
    assert run_interrupted(tmp_path, a=node) == "interrupted: stopped at once"
    assert not (tmp_path / "error.txt").exists()


def test_a_signal_at_the_end_leaves_no_handler_of_the_run_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_handler = signal.signal
    before = set_handler(signal.SIGTERM, signal.SIG_IGN)  # the signal may come when it is put back

    def set_after_a_signal(number: int, handler: signal.Handlers) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return set_handler(number, handler)

    def stop_at_once(name: str) -> None:
        raise KeyboardInterrupt

    try:
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        with handling_signals(stop_at_once):
            monkeypatch.setattr(signal, "signal", set_after_a_signal)
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    finally:
        set_handler(signal.SIGTERM, before)
