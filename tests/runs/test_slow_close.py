"""Nodes that do not close: the run says that it waits, and Ctrl-C keeps the result."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from flowrl.checks.check import check
from flowrl.core.batch import Batch
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs import run as run_module
from flowrl.runs.run import Run
from flowrl.runs.watcher import Watcher
from tests.toys.toy_runs import toy_graph

TOLD = threading.Event()


class InterruptedWhileClosing(Node):
    """Blocks when it is closed, until Ctrl-C."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        pass

    def close(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)


class ClosesWhenTold(InterruptedWhileClosing):
    """Is closed when the user was told that this takes long."""

    def close(self) -> None:
        assert TOLD.wait(60)


class NoteWatcher(Watcher):
    def note(self, run: Run, text: str) -> None:
        self.text = text
        TOLD.set()


def run_with(node: type[Node], out: Path, watcher: Watcher | None = None) -> Run:
    nodes = {"c": "Source", "l": "Learner", "x": f"{__name__}:{node.__name__}"}
    graph = check(load_data(toy_graph(nodes, ["c -> l, x"])))
    run = Run(graph, out=out, limits=Limits(train_iters=3), watcher=watcher)
    run.run()
    return run


def test_ctrl_c_while_nodes_are_closed_keeps_the_result(tmp_path: Path) -> None:
    result = run_with(InterruptedWhileClosing, tmp_path / "r").ended
    assert result is not None
    assert (result.status, result.train_iters, len(result.digest)) == ("finished", 3, 64)
    assert result.happened == ("the nodes were not closed: a person did not wait for them",)


def test_the_user_is_told_that_nodes_take_long_to_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "SLOW_CLOSE_S", 0.001)
    watcher = NoteWatcher()
    run_with(ClosesWhenTold, tmp_path / "r", watcher)
    assert watcher.text.startswith("the nodes take long to close; Ctrl-C leaves them")
