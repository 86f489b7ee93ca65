"""Runs that go on in a thread while a test looks at them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.queries import find_live, look
from flowrl.runs.registry import Entry, entries
from flowrl.runs.run import Run
from flowrl.runs.run_status import Look
from tests.sites.slow_nodes import GATE

SLOW = "tests.sites.slow_nodes:"
DEADLINE_S = 15.0


def pair(a: Mapping[str, Any] | None = None, b: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A giver `a` and a taker `b`, with room for four tokens between them."""
    nodes = {"a": {"type": f"{SLOW}Giver", **(a or {})}, "b": {"type": f"{SLOW}Taker", **(b or {})}}
    return {"nodes": nodes, "edges": [{"a -> b": {"capacity": 4}}]}


@contextmanager
def going(
    graph: Mapping[str, Any], out: Path, placement: str = "serial", **limits: Any
) -> Iterator[Entry]:
    """A run in a thread; it is stopped, and what hangs in it is freed, when the test has seen enough."""
    run = Run(check(load_data(graph)), placement=placement, out=out, limits=Limits(**limits))
    GATE.clear()
    thread = threading.Thread(target=run.run, daemon=True)
    thread.start()
    try:
        yield until(lambda: next((e for e in entries() if e.run_dir == str(out)), None))
    finally:
        if not run.stops:
            run.stop()
        GATE.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def until(found: Callable[[], Any]) -> Any:
    """What is found at last."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
    return value


def look_until(entry: Entry, holds: Callable[[Look], Any]) -> Look:
    """The first look of which this holds."""

    def one() -> Look | None:
        found = look(entry)
        return found if holds(found) else None

    found: Look = until(one)
    return found


def doing(found: Look) -> dict[str, tuple[str, str, str]]:
    """What each site does: what, who, for which edge."""
    return {s["site"]: (s["doing"], s["who"], s["edge"]) for s in found["sites"]}


__all__ = ["SLOW", "doing", "find_live", "going", "look", "look_until", "pair", "until"]
