"""A working folder with graphs of toy nodes, and the command line in it: called, or as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowrl.cli import main
from flowrl.graph.yaml_writer import flow_text
from tests.toys.toy_runs import toy_graph

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}

NODES = {"c": "Source", "l": "Learner", "e": "Evaluator"}
EDGES = ["c -> l", "l.weights -> c.weights", {"l.weights -> e": {"every": 2}}]


def write(path: Path, nodes: Any = None, edges: Any = None, **more: Any) -> None:
    """A graph file of toy nodes."""
    whole = toy_graph({**NODES, **(nodes or {})}, [*EDGES, *(edges or [])], **more)
    path.write_text("".join(f"{key}: {flow_text(value)}\n" for key, value in whole.items()))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder; `g.yaml` in it is a sound graph."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "g.yaml")
    return tmp_path


Called = tuple[int, str, str]


@pytest.fixture
def flowrl(folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """Call the command line, and return the exit status, standard output and standard error."""

    def call(*words: str) -> Called:
        try:
            status = main(words)
        except SystemExit as left:
            status = int(left.code or 0)
        return (status, *capfd.readouterr())

    return call


def one_line(text: str) -> dict[str, Any]:
    """The only line of JSON."""
    assert text.count("\n") == 1
    found: dict[str, Any] = json.loads(text)
    return found


def python(*words: str, folder: Path, **more: Any) -> subprocess.Popen[str]:
    """A process of this Python in a folder."""
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=ENV, text=True, **more)


@contextmanager
def process(*words: str, folder: Path, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """`flowrl` as a process, with its output piped; it does not outlive the test."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    with python("-m", "flowrl", *words, folder=folder, **pipes) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
