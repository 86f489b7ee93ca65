"""Checks which nodes may go on after a failed firing."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.core.errors import Problem
from flowrl.core.ports import Out
from flowrl.graph.model import Graph, PortRef


def failure_problems(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each node that cannot fail without its neighbours.

    Those are groups, and nodes with `on_failure: ignore` whose output other nodes wait for.
    """
    taken = {s for e in graph.edges if e.kind == "stream" for s in e.sources}
    for name, spec in graph.nodes.items():
        where, how = str(spec.location()), spec.on_failure
        if how != "stop" and spec.is_group:
            what = f"nodes.{name}: on_failure is {how}, and its replicas fire together"
            yield Problem(where, what, "leave on_failure out, or give it one replica")
        outs = (port for port, kind in spec.cls.ports.items() if isinstance(kind, Out))
        awaited = next((port for port in outs if PortRef(name, port) in taken), None)
        if how == "ignore" and awaited is not None:
            what = f"nodes.{name}: on_failure is ignore, and other nodes wait for its output '{awaited}'"
            yield Problem(where, what, "use restart")
