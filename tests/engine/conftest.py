"""Graphs written into an empty folder, which is the working folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from flowrl.checks.check import Checked, check
from flowrl.graph.loading import load

Write = Callable[..., Path]
Check = Callable[..., Checked]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file of the folder, `g.yaml` by default; graphs in it may name the toys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def write(text: str, name: str = "g.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return write


@pytest.fixture
def checked(write: Write) -> Check:
    """Check a graph: the text of `g.yaml`, and values as `--set` takes them."""

    def checked(text: str, **sets: str) -> Checked:
        write(text)
        return check(load("g.yaml", {k.replace("__", "."): v for k, v in sets.items()}))

    return checked


@pytest.fixture
def problems(checked: Check) -> Callable[..., list[str]]:
    """The problems of a graph, as they are printed."""
    return lambda text, **sets: [str(p) for p in checked(text, **sets).problems]
