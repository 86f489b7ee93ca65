"""Runs graphs of toy nodes in this thread, and returns the lines that the nodes logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.checks.check import check
from flowrl.core.records import CheckpointRecord, MetricsRecord, Record, VerdictRecord
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runtime.executor import Cut
from flowrl.runtime.records import RecordSource
from flowrl.runtime.serial_executor import SerialExecutor


class Trace:
    """A record sink. `lines` are the lines of the nodes' logs, in the order of the program."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.other_records: list[tuple[str, Record]] = []

    def record(self, source: RecordSource, record: Record) -> None:
        if isinstance(record, MetricsRecord | CheckpointRecord | VerdictRecord):
            self.other_records.append((source.key, record))
        else:
            self.lines.append(f"{source.key}: {record}")

    def lines_of(self, key: str) -> list[str]:
        """Return the lines of one instance, without its name."""
        return [line.partition(": ")[2] for line in self.lines if line.partition(": ")[0] == key]


def toy_graph(nodes: Mapping[str, Any], edges: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Return the data of a graph whose node types are classes of `toy_nodes`."""
    whole = {
        name: {"type": _type(node)}
        if isinstance(node, str)
        else {**node, "type": _type(node["type"])}
        for name, node in nodes.items()
    }
    return {"nodes": whole, "edges": list(edges), **more}


def _type(name: str) -> str:
    return name if ":" in name else f"tests.toys.toy_nodes:{name}"


def make_executor(
    graph: Mapping[str, Any], seed: int = 0, **limits: Any
) -> tuple[SerialExecutor, Trace]:
    """Return a serial executor of a sound graph, and its trace."""
    trace = Trace()
    checked = check(load_data(graph)).require_sound()
    return SerialExecutor(checked, trace, seed, Limits(**limits)), trace


def run(
    graph: Mapping[str, Any], seed: int = 0, **limits: Any
) -> tuple[SerialExecutor, Trace, Cut]:
    """Run a graph to its cut and close it. Return the executor, the trace and the cut."""
    executor, trace = make_executor(graph, seed, **limits)
    try:
        return executor, trace, executor.run()
    finally:
        executor.close()


def logged_lines(graph: Mapping[str, Any], seed: int = 0, **limits: Any) -> list[str]:
    """Return the lines that the nodes logged until the cut."""
    return run(graph, seed, **limits)[1].lines
