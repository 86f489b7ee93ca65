"""Runs in a thread, whose status a test queries meanwhile."""

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
from flowrl.runs.queries import query_status
from flowrl.runs.registry import RunEntry, live_entries
from flowrl.runs.run import Run
from flowrl.runtime.status import RunStatus
from tests.sites.slow_nodes import GATE

SLOW = "tests.sites.slow_nodes:"
DEADLINE_S = 60.0


def pair(a: Mapping[str, Any] | None = None, b: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A producer `a` and a consumer `b`, with room for four tokens between them."""
    nodes = {
        "a": {"type": f"{SLOW}TimedCollector", **(a or {})},
        "b": {"type": f"{SLOW}TimedNode", **(b or {})},
    }
    return {"nodes": nodes, "edges": [{"a -> b": {"capacity": 4}}]}


@contextmanager
def running_in_a_thread(
    graph: Mapping[str, Any], out: Path, placement: str = "serial", **limits: Any
) -> Iterator[RunEntry]:
    """A run in a thread. Afterwards it is stopped, and nodes that hang are released."""
    run = Run(check(load_data(graph)), placement=placement, out=out, limits=Limits(**limits))
    GATE.clear()
    thread = threading.Thread(target=run.run, daemon=True)
    thread.start()
    try:
        yield wait_for(lambda: next((e for e in live_entries() if e.run_dir == str(out)), None))
    finally:
        if not run.is_stopping:
            run.stop()
        GATE.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def wait_for(find: Callable[[], Any]) -> Any:
    """The first true value that `find` returns."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := find()):
        assert time.monotonic() < deadline, "nothing was found in time"
        time.sleep(0.01)
    return value


def wait_for_status(entry: RunEntry, holds: Callable[[RunStatus], Any]) -> RunStatus:
    """The first status for which this holds."""

    def status_if_it_holds() -> RunStatus | None:
        found = query_status(entry)
        return found if holds(found) else None

    found: RunStatus = wait_for(status_if_it_holds)
    return found


def activities(status: RunStatus) -> dict[str, tuple[str, str, str]]:
    """The activity of each site: kind, instance, edge."""
    return {
        site.site: (site.activity.kind, site.activity.instance, site.activity.edge)
        for site in status.sites
    }
